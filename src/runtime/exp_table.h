/* Constants of the exponential of sixteen lanes: of its interpreted form and of its machine code. */
#ifndef CODA_RUNTIME_EXP_TABLE_H
#define CODA_RUNTIME_EXP_TABLE_H

/* 2^(i/16), bits of f32 */
#define EXP_SIXTEENTHS                                                                                                 \
    0x3f800000u, 0x3f85aac3u, 0x3f8b95c2u, 0x3f91c3d3u, 0x3f9837f0u, 0x3f9ef532u, 0x3fa5fed7u, 0x3fad583fu,            \
        0x3fb504f3u, 0x3fbd08a4u, 0x3fc5672au, 0x3fce248cu, 0x3fd744fdu, 0x3fe0ccdfu, 0x3feac0c7u, 0x3ff5257du

/* exp(r) - 1 = r + r^2 (EXP_SQUARE + r EXP_CUBE), |r| <= ln(2) / 32 */
#define EXP_SQUARE 0.5f
#define EXP_CUBE   0.16666667f

#endif
