/* Texts of blocks, and comparison of what the compiler makes of them. */
#ifndef KIT_TEXTS_H
#define KIT_TEXTS_H

#include "lang/lang.h"

/* The text of blocks/NAME.coda, valid until the next call; fails the test where there is none. */
char *read_block(const char *name);
/* Both print alike, program by program; fails the test otherwise. */
void assert_same_text(const struct unit *first, const struct unit *second);

#endif
