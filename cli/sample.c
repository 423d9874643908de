#include "training.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: coda sample --checkpoint DIR [options]\n"
    "\n"
    "Continues a text with a model that `coda train` or Hugging Face wrote: a directory with config.json and\n"
    "model.safetensors, or one of checkpoints, whose newest is taken.\n"
    "\n"
    "  --checkpoint DIR    the model\n"
    "  --prompt TEXT       what to continue; token ids such as 1,2,3 where the vocabulary is not bytes\n"
    "  --tokens N          tokens to generate (200)\n"
    "  --temperature T     0: always the likeliest (0.8)\n"
    "  --top-k N           choose among the N likeliest; 0: all (0)\n"
    "  --seed N            of the choices (1)\n"
    "  --dtype T           f32, bf16 or f16 (bf16)\n"
    "  --device D          cpu or ref (cpu)\n"
    "  --threads N         threads of the CPU\n"
    "  --json              one JSON object\n"
    "  --help              this text\n";

struct options {
    struct arguments arguments; /* device and threads */
    const char *checkpoint;
    coda_dtype dtype;
    struct speech speech;
    bool json;
};

static bool read_number(const char *text, double low, double high, double *number)
{
    char *end;
    errno = 0;
    *number = strtod(text, &end);
    return !errno && end != text && !*end && *number >= low && *number <= high;
}

static bool read_dtype(const char *text, coda_dtype *dtype)
{
    static const coda_dtype choices[] = {CODA_F32, CODA_BF16, CODA_F16};
    for (int i = 0; i < 3; i++)
        if (strcmp(coda_dtype_name(choices[i]), text) == 0) {
            *dtype = choices[i];
            return true;
        }
    return false;
}

/* Returns -1 to go on. */
static int take(struct options *o, int code, const char *name, const char *value)
{
    double number = 0;
    bool good = true;
    switch (code) {
    case 'c':
        o->checkpoint = value;
        break;
    case 'p':
        o->speech.prompt = value;
        break;
    case 'T':
        good = read_number(value, 0, 1e6, &o->speech.temperature);
        break;
    case 'y':
        good = read_dtype(value, &o->dtype);
        break;
    case 'd':
        o->arguments.device = value;
        break;
    case 'j':
        o->json = true;
        break;
    default:
        good = read_number(value, code == 'x', 1e9, &number) && number == floor(number);
        *(code == 'n'   ? &o->speech.tokens
          : code == 'k' ? &o->speech.top_k
          : code == 's' ? &o->speech.seed
                        : &o->arguments.threads) = (long)number;
    }
    return good ? -1 : usage_error("sample", "--%s %s: no value that it can have", name, value);
}

static int read_options(struct options *o, int argc, char **argv)
{
    static const struct option known[] = {
        {"help", no_argument, NULL, 'h'},         {"checkpoint", required_argument, NULL, 'c'},
        {"prompt", required_argument, NULL, 'p'}, {"tokens", required_argument, NULL, 'n'},
        {"top-k", required_argument, NULL, 'k'},  {"temperature", required_argument, NULL, 'T'},
        {"seed", required_argument, NULL, 's'},   {"dtype", required_argument, NULL, 'y'},
        {"device", required_argument, NULL, 'd'}, {"threads", required_argument, NULL, 'x'},
        {"json", no_argument, NULL, 'j'},         {NULL, 0, NULL, 0},
    };
    int index = 0;
    opterr = 0;
    optind = 1;
    for (int code; (code = getopt_long(argc, argv, "h", known, &index)) != -1;) {
        if (code == 'h') {
            fputs(help, stdout);
            return EXIT_GOOD;
        }
        if (code == '?')
            return usage_error("sample", "%s is unknown, ambiguous or lacks its value", argv[optind - 1]);
        int status = take(o, code, known[index].name, optarg);
        if (status >= 0)
            return status;
    }
    if (optind < argc)
        return usage_error("sample", "unexpected argument %s", argv[optind]);
    if (!o->checkpoint)
        return usage_error("sample", "--checkpoint DIR is missing");
    return -1;
}

int command_sample(int argc, char **argv)
{
    struct options o = {
        .arguments = {.command = "sample", .device = "cpu"}, .dtype = CODA_BF16, .speech = {"", 0.8, 200, 0, 1}};
    struct json json = {stdout, false};
    char path[CODA_PATH_SIZE];
    coda_error error;
    coda_device *device = NULL;
    coda_llama *llama = NULL;
    int code = read_options(&o, argc, argv);
    if (code < 0)
        code = open_device(&o.arguments, &device);
    if (code >= 0)
        return code;
    coda_status status = coda_checkpoint_find(o.checkpoint, path, &error);
    if (status == CODA_OK)
        status = coda_llama_load(device, path, o.dtype, &llama, &error);
    if (status == CODA_OK && o.json) {
        json_begin(&json);
        json_text(&json, "checkpoint", path);
        json_text(&json, "prompt", o.speech.prompt);
    }
    if (status == CODA_OK)
        status = speak("sample", llama, &o.speech, o.json ? &json : NULL, &error);
    if (status == CODA_OK && o.json)
        json_line(&json);
    code = status == CODA_OK ? EXIT_GOOD : error.message[0] ? report("sample", &error) : EXIT_USAGE;
    coda_llama_free(llama);
    coda_device_close(device);
    return code;
}
