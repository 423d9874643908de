/* A directory of the test's own, with what is in it. */
#ifndef KIT_SCRATCH_H
#define KIT_SCRATCH_H

#include <stddef.h>

enum { SCRATCH_PATH = 512 };

/* All fail the test where the system refuses. */
void scratch_new(char directory[SCRATCH_PATH]);
void scratch_free(const char *directory); /* and everything in it */
void scratch_write(const char *directory, const char *name, const void *bytes, size_t count, char path[SCRATCH_PATH]);
void *scratch_read(const char *path, size_t *count); /* release with free */
int scratch_count(const char *directory);            /* entries, hidden ones too; -1: there is no such directory */

#endif
