#include "cli.h"

#include <math.h>

static void separate(struct json *json)
{
    if (json->comma)
        fputs(", ", json->file);
    json->comma = true;
}

static void print_string(FILE *file, const char *text)
{
    fputc('"', file);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            fprintf(file, "\\%c", c);
        else if (c == '\n')
            fputs("\\n", file);
        else if (c < 0x20)
            fprintf(file, "\\u%04x", c);
        else
            fputc(c, file);
    }
    fputc('"', file);
}

static void member(struct json *json, const char *name)
{
    separate(json);
    print_string(json->file, name);
    fputs(": ", json->file);
}

void json_begin(struct json *json)
{
    separate(json);
    fputc('{', json->file);
    json->comma = false;
}

void json_end(struct json *json)
{
    fputc('}', json->file);
    json->comma = true;
}

void json_line(struct json *json)
{
    fputs("}\n", json->file);
    json->comma = false;
}

void json_array(struct json *json, const char *name)
{
    member(json, name);
    fputc('[', json->file);
    json->comma = false;
}

void json_item(struct json *json, const char *text)
{
    separate(json);
    print_string(json->file, text);
}

void json_array_end(struct json *json)
{
    fputc(']', json->file);
    json->comma = true;
}

void json_text(struct json *json, const char *name, const char *text)
{
    member(json, name);
    print_string(json->file, text);
}

void json_number(struct json *json, const char *name, double number)
{
    member(json, name);
    if (isfinite(number))
        fprintf(json->file, "%.9g", number);
    else
        fputs("null", json->file);
}

void json_bool(struct json *json, const char *name, bool value)
{
    member(json, name);
    fputs(value ? "true" : "false", json->file);
}

void json_dims(struct json *json, const char *name, const coda_dims *dims)
{
    member(json, name);
    json->comma = false;
    fputc('{', json->file);
    for (int i = 0; i < dims->count; i++)
        json_number(json, dims->item[i].axis, (double)dims->item[i].size);
    fputc('}', json->file);
    json->comma = true;
}
