#include "model/data.h"
#include "model/files.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK = 1 << 16, MOST_SHARDS = 65536 };

static int64_t token_at(const unsigned char *bytes, int width)
{
    int64_t token = bytes[0];
    for (int i = 1; i < width; i++)
        token |= (int64_t)bytes[i] << (8 * i);
    return token;
}

/* Up to `count` bytes from `at`; fewer only at the end of the file. */
static coda_status read_bytes(const struct shard *shard, int64_t at, void *to, int64_t count, int64_t *got,
                              coda_error *error)
{
    *got = 0;
    while (*got < count) {
        ssize_t read = pread(shard->descriptor, (char *)to + *got, (size_t)(count - *got), at + *got);
        if (read < 0 && errno == EINTR)
            continue;
        if (read < 0)
            return model_system_error(error, "read", shard->path);
        if (read == 0)
            break;
        *got += read;
    }
    return CODA_OK;
}

/* Checks every token of a shard and folds its bytes into the fingerprint. */
static coda_status scan(struct data *data, struct shard *shard, int64_t vocabulary, coda_error *error)
{
    unsigned char chunk[CHUNK];
    int64_t at = 0, got = 0;
    do {
        coda_status status = read_bytes(shard, at, chunk, CHUNK, &got, error);
        if (status != CODA_OK)
            return status;
        at += got;
        if (at % data->width)
            return model_fail(error, CODA_INVALID, "'%s' has %lld bytes, no multiple of the %d of a token", shard->path,
                              (long long)at, data->width);
        for (int64_t i = 0; i < got; i += data->width) {
            int64_t token = token_at(chunk + i, data->width);
            data->fingerprint = (data->fingerprint ^ (uint64_t)token) * 0x100000001b3u;
            int64_t place = (at - got + i) / data->width;
            if (token >= vocabulary)
                return model_fail(
                    error, CODA_INVALID,
                    "'%s': token %lld is %lld, but the vocabulary has %lld: raise vocab_size, or check the "
                    "data's format (now %d-byte tokens)",
                    shard->path, (long long)place, (long long)token, (long long)vocabulary, data->width);
        }
    } while (got == CHUNK);
    shard->tokens = at / data->width;
    return CODA_OK;
}

static coda_status add_shard(struct data *data, const char *path, coda_error *error)
{
    struct shard *grown = realloc(data->shard, (size_t)(data->shard_count + 1) * sizeof *grown);
    if (!grown)
        return model_no_memory(error, "the list of data files", (size_t)(data->shard_count + 1) * sizeof *grown);
    data->shard = grown;
    struct shard *shard = &grown[data->shard_count];
    memset(shard, 0, sizeof *shard);
    shard->path = strdup(path);
    if (!shard->path)
        return model_no_memory(error, path, strlen(path) + 1);
    shard->descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (shard->descriptor < 0) {
        coda_status status = model_system_error(error, "open the data", path);
        free(shard->path);
        return status;
    }
    data->shard_count++;
    struct stat info;
    if (fstat(shard->descriptor, &info) != 0 || !S_ISREG(info.st_mode))
        return model_fail(error, CODA_INVALID, "'%s' is no regular file: save the data to one first", path);
    return CODA_OK;
}

static int is_shard(const struct dirent *entry)
{
    size_t length = strlen(entry->d_name);
    return length > 4 && entry->d_name[0] != '.' && strcmp(entry->d_name + length - 4, ".bin") == 0;
}

static coda_status add_directory(struct data *data, const char *path, coda_error *error)
{
    struct dirent **entry = NULL;
    int count = scandir(path, &entry, is_shard, alphasort);
    if (count < 0)
        return model_system_error(error, "read the directory", path);
    coda_status status = CODA_OK;
    if (count == 0 || count > MOST_SHARDS)
        status = model_fail(error, CODA_INVALID, "the directory '%s' has %d files *.bin; expected 1 to %d", path, count,
                            MOST_SHARDS);
    for (int i = 0; i < count; i++) {
        char whole[CODA_PATH_SIZE + 300];
        if (status == CODA_OK)
            status = join_path(whole, sizeof whole, path, entry[i]->d_name, error);
        if (status == CODA_OK)
            status = add_shard(data, whole, error);
        free(entry[i]);
    }
    free(entry);
    return status;
}

coda_status data_open(struct data *data, const char *path, coda_data_format format, int64_t vocabulary,
                      int64_t sequence, coda_error *error)
{
    memset(data, 0, sizeof *data);
    struct stat info;
    if (stat(path, &info) != 0)
        return model_system_error(error, "open the data", path);
    bool directory = S_ISDIR(info.st_mode);
    size_t length = strlen(path);
    bool binary = directory || (length > 4 && strcmp(path + length - 4, ".bin") == 0);
    if (format == CODA_DATA_AUTO)
        format = binary ? CODA_DATA_U16 : CODA_DATA_BYTES;
    data->width = format == CODA_DATA_BYTES ? 1 : format == CODA_DATA_U16 ? 2 : 4;
    data->fingerprint = 0xcbf29ce484222325u;
    coda_status status = directory ? add_directory(data, path, error) : add_shard(data, path, error);
    for (int i = 0; i < data->shard_count && status == CODA_OK; i++) {
        struct shard *shard = &data->shard[i];
        shard->first = data->tokens;
        status = scan(data, shard, vocabulary, error);
        data->tokens += shard->tokens;
    }
    if (status == CODA_OK && data->tokens <= sequence)
        status =
            model_fail(error, CODA_INVALID,
                       "'%s' has %lld tokens, but one sample takes %lld (sequence + 1): give more data or a shorter "
                       "sequence",
                       path, (long long)data->tokens, (long long)sequence + 1);
    if (status != CODA_OK)
        data_close(data);
    return status;
}

void data_close(struct data *data)
{
    for (int i = 0; i < data->shard_count; i++) {
        close(data->shard[i].descriptor);
        free(data->shard[i].path);
    }
    free(data->shard);
    data->shard = NULL;
    data->shard_count = 0;
}

/* A permutation of 0..count-1: a Feistel network on the next power of four, walked until it lands inside. */
static int64_t permute(uint64_t key, int64_t index, int64_t count)
{
    int half = 1;
    while (half < 31 && (int64_t)1 << (2 * half) < count)
        half++;
    uint64_t mask = ((uint64_t)1 << half) - 1, x = (uint64_t)index;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (uint64_t round = 0; round < 4; round++) {
            uint64_t next = left ^ (mix64(key ^ mix64(right + (round << 40))) & mask);
            left = right;
            right = next;
        }
        x = left << half | right;
    } while (x >= (uint64_t)count);
    return (int64_t)x;
}

/* Copies tokens first..first+count-1, which may span shards. */
static coda_status read_tokens(const struct data *data, int64_t first, int64_t count, int32_t *tokens,
                               coda_error *error)
{
    unsigned char chunk[CHUNK] = {0};
    int i = 0;
    while (count > 0) {
        while (first >= data->shard[i].first + data->shard[i].tokens)
            i++;
        const struct shard *shard = &data->shard[i];
        int64_t here = minimum(count, shard->first + shard->tokens - first), got;
        here = minimum(here, CHUNK / data->width);
        int64_t bytes = here * data->width;
        coda_status status = read_bytes(shard, (first - shard->first) * data->width, chunk, bytes, &got, error);
        if (status != CODA_OK)
            return status;
        if (got < bytes)
            return model_fail(error, CODA_IO, "'%s' became shorter since training began", shard->path);
        for (int64_t j = 0; j < here; j++)
            *tokens++ = (int32_t)token_at(chunk + j * data->width, data->width);
        first += here;
        count -= here;
    }
    return CODA_OK;
}

coda_status data_sample(const struct data *data, uint64_t seed, int64_t number, int64_t length, int32_t *tokens,
                        int32_t *targets, coda_error *error)
{
    int64_t starts = data->tokens - length;        /* places where a window may begin */
    int64_t windows = maximum(1, starts / length); /* a window less than fit, to leave room for the shift */
    int64_t room = minimum(length, starts - (windows - 1) * length);
    int64_t epoch = number / windows;
    uint64_t key = mix64(seed ^ mix64((uint64_t)epoch));
    int64_t shift = (int64_t)(uniform(key, 1) * (double)room);
    int64_t first = permute(key, number % windows, windows) * length + shift;
    coda_status status = read_tokens(data, first, length, tokens, error);
    if (status != CODA_OK)
        return status;
    memcpy(targets, tokens + 1, (size_t)(length - 1) * sizeof *targets);
    return read_tokens(data, first + length, 1, targets + length - 1, error);
}
