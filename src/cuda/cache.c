#include "cuda/cache.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char magic[8] = "CODAcub1";

struct header {
    char magic[8];
    uint64_t size;
    struct digest digest;
};

/* Makes a folder and those above it. */
static bool make_folder(char *path)
{
    for (char *c = path + 1; *c; c++) {
        if (*c != '/')
            continue;
        *c = '\0';
        int made = mkdir(path, 0777);
        *c = '/';
        if (made != 0 && errno != EEXIST)
            return false;
    }
    return (mkdir(path, 0777) == 0 || errno == EEXIST) && access(path, W_OK | X_OK) == 0;
}

void cache_open(struct cache *cache)
{
    const char *chosen = getenv("CODA_CACHE"), *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int length = 0;
    cache->folder[0] = '\0';
    if (chosen && !strcmp(chosen, "off")) {
        snprintf(cache->remark, sizeof cache->remark, "off (CODA_CACHE=off): kernels are compiled each time");
        return;
    }
    if (chosen && *chosen)
        length = snprintf(cache->folder, sizeof cache->folder, "%s", chosen);
    else if (base && *base)
        length = snprintf(cache->folder, sizeof cache->folder, "%s/coda", base);
    else if (home && *home)
        length = snprintf(cache->folder, sizeof cache->folder, "%s/.cache/coda", home);
    if (length <= 0 || length + 90 >= (int)sizeof cache->folder) {
        cache->folder[0] = '\0';
        snprintf(cache->remark, sizeof cache->remark, "none: set CODA_CACHE to a folder");
    } else if (!make_folder(cache->folder)) {
        snprintf(cache->remark, sizeof cache->remark, "none: %.120s cannot be written (%s); set CODA_CACHE to a folder",
                 cache->folder, strerror(errno));
        cache->folder[0] = '\0';
    } else {
        snprintf(cache->remark, sizeof cache->remark, "%.240s", cache->folder);
    }
}

static void file_name(const struct cache *cache, const char *kind, const struct digest *key, char path[1024])
{
    char hex[65];
    digest_hex(key, hex);
    snprintf(path, 1024, "%s/%s.%s", cache->folder, hex, kind);
}

static bool read_file(const char *path, void **data, size_t *size)
{
    struct header header;
    FILE *file = fopen(path, "rb");
    if (!file)
        return false;
    char *content = NULL;
    bool good = fread(&header, sizeof header, 1, file) == 1 && !memcmp(header.magic, magic, sizeof magic) &&
                header.size > 0 && header.size < 1u << 30 && (content = malloc(header.size + 1)) != NULL &&
                fread(content, 1, header.size, file) == header.size && fgetc(file) == EOF;
    fclose(file);
    if (good) {
        struct digest found = digest_of(content, header.size);
        good = !memcmp(&found, &header.digest, sizeof found);
    }
    if (!good) {
        free(content);
        return false;
    }
    content[header.size] = '\0';
    *data = content;
    *size = header.size;
    return true;
}

bool cache_get(const struct cache *cache, const char *kind, const struct digest *key, void **data, size_t *size)
{
    char path[1024];
    if (!cache->folder[0])
        return false;
    file_name(cache, kind, key, path);
    return read_file(path, data, size);
}

bool cache_put(const struct cache *cache, const char *kind, const struct digest *key, const void *data, size_t size)
{
    char path[1024], temporary[1100];
    struct header header = {.size = size, .digest = digest_of(data, size)};
    if (!cache->folder[0])
        return false;
    memcpy(header.magic, magic, sizeof magic);
    file_name(cache, kind, key, path);
    snprintf(temporary, sizeof temporary, "%s.XXXXXX", path);
    int handle = mkstemp(temporary);
    if (handle < 0)
        return false;
    FILE *file = fdopen(handle, "wb");
    bool good = file && fwrite(&header, sizeof header, 1, file) == 1 && fwrite(data, 1, size, file) == size &&
                fflush(file) == 0 && fsync(handle) == 0;
    if (file)
        good = fclose(file) == 0 && good;
    else
        close(handle);
    good = good && rename(temporary, path) == 0;
    if (!good)
        unlink(temporary);
    return good;
}

void cache_remove(const struct cache *cache, const char *kind, const struct digest *key)
{
    char path[1024];
    if (!cache->folder[0])
        return;
    file_name(cache, kind, key, path);
    unlink(path);
}

void cache_each(const struct cache *cache, const char *kind,
                void (*visit)(void *context, const char *data, size_t size), void *context)
{
    DIR *folder = cache->folder[0] ? opendir(cache->folder) : NULL;
    if (!folder)
        return;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        const char *dot = strrchr(entry->d_name, '.');
        char path[1100];
        void *data;
        size_t size;
        if (!dot || strcmp(dot + 1, kind) != 0 || strlen(entry->d_name) > 200)
            continue;
        snprintf(path, sizeof path, "%s/%.200s", cache->folder, entry->d_name);
        if (read_file(path, &data, &size)) {
            visit(context, data, size);
            free(data);
        }
    }
    closedir(folder);
}
