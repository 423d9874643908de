/* Files that appear complete or not at all, and directories. */
#ifndef CODA_MODEL_FILES_H
#define CODA_MODEL_FILES_H

#include "model/common.h"

/* A file under a temporary name beside its final one. */
struct output {
    int descriptor;
    char path[CODA_PATH_SIZE + 64];
    char temporary[CODA_PATH_SIZE + 96];
};

coda_status output_open(struct output *output, const char *path, coda_error *error);
coda_status output_write(struct output *output, const void *bytes, size_t count, coda_error *error);
/* Flushes to the disk and takes the final name. On failure the temporary file is gone and `path` as it was. */
coda_status output_commit(struct output *output, coda_error *error);
void output_abandon(struct output *output);

/* All of a text as a file. */
coda_status write_text_file(const char *path, const char *text, size_t length, coda_error *error);

/* directory/name, or CODA_INVALID where it is longer than `room`. */
coda_status join_path(char *path, size_t room, const char *directory, const char *name, coda_error *error);
coda_status make_directories(const char *path, coda_error *error); /* with parents; none is an error if it exists */
coda_status flush_directory(const char *path, coda_error *error);
/* Removes a directory of files, not of directories. */
coda_status remove_directory(const char *path, coda_error *error);
/* The directory `from` takes the name `to`, in one step even where `to` exists; that one then has the name `from`. */
coda_status exchange_directory(const char *from, const char *to, bool *exchanged, coda_error *error);

#endif
