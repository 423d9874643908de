#include "scratch.h"
#include <dirent.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

void scratch_new(char directory[SCRATCH_PATH])
{
    const char *parent = getenv("TMPDIR");
    snprintf(directory, SCRATCH_PATH, "%s/coda-test-XXXXXX", parent && *parent ? parent : "/tmp");
    assert_non_null(mkdtemp(directory));
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *place)
{
    (void)info;
    (void)type;
    (void)place;
    return remove(path);
}

void scratch_free(const char *directory)
{
    nftw(directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

void scratch_write(const char *directory, const char *name, const void *bytes, size_t count, char path[SCRATCH_PATH])
{
    snprintf(path, SCRATCH_PATH, "%.400s/%.100s", directory, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

void *scratch_read(const char *path, size_t *count)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("cannot open %s", path);
    fseek(file, 0, SEEK_END);
    long length = ftell(file);
    rewind(file);
    char *bytes = malloc((size_t)length + 1);
    assert_non_null(bytes);
    *count = fread(bytes, 1, (size_t)length, file);
    assert_int_equal(*count, length);
    bytes[length] = 0;
    fclose(file);
    return bytes;
}

int scratch_count(const char *directory)
{
    DIR *open = opendir(directory);
    int count = -2; /* . and .. */
    if (!open)
        return -1;
    while (readdir(open))
        count++;
    closedir(open);
    return count;
}
