/* Prints what ISA-L makes of fixed input: for each code the parity rows of its Cauchy matrix and the
 * parity of 61 pseudo-random bytes a strip. golden.txt is this program's output, frozen. */
#include <isa-l/erasure_code.h>
#include <stdint.h>
#include <stdio.h>

enum { LEN = 61, STRIPS = 32 };

static uint32_t state;
static uint8_t next_byte(void) {
    state = state * 1664525u + 1013904223u;
    return state >> 24;
}

static void hex(const char *what, int k, int m, const uint8_t *bytes, int n) {
    printf("%d+%dp %s ", k, m, what);
    for (int i = 0; i < n; i++) printf("%02x", bytes[i]);
    printf("\n");
}

int main(void) {
    static const int codes[][2] = {{2, 1}, {4, 2}, {4, 3}, {8, 2}, {8, 3}, {16, 2}, {16, 3}};
    for (unsigned c = 0; c < sizeof codes / sizeof codes[0]; c++) {
        int k = codes[c][0], m = codes[c][1];
        uint8_t matrix[STRIPS * STRIPS], tables[32 * STRIPS * STRIPS], strips[STRIPS][LEN];
        uint8_t *places[STRIPS];
        state = 1;
        for (int i = 0; i < STRIPS; i++) places[i] = strips[i];
        for (int i = 0; i < k; i++)
            for (int b = 0; b < LEN; b++) strips[i][b] = next_byte();
        gf_gen_cauchy1_matrix(matrix, k + m, k);
        ec_init_tables(k, m, matrix + k * k, tables);
        ec_encode_data(LEN, k, m, tables, places, places + k);
        hex("matrix", k, m, matrix + k * k, k * m);
        for (int i = 0; i < m; i++) hex("parity", k, m, strips[k + i], LEN);
    }
    return 0;
}
