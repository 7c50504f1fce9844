/* The inner loops of planning, for `library.py`, which says what each does.

Every loop gives the bits that arrays give: sums are not reordered and not fused, and where the least
of several is taken, any order gives the same. Functions return 0, or -1 where memory ran out. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__linux__)
#define WIDE __attribute__((target_clones("avx512f", "avx2", "default"))) /* chosen when loaded */
#else
#define WIDE
#endif

const char *autoddl_loops_source(void) { return AUTODDL_LOOPS_SOURCE; }

/* ---- Cheapest paths from several starts: edges shorten lengths until none does any more ---- */

/* Extend the paths that end at one node by its edges; mark the nodes that come nearer to a start. */
WIDE static void extend(int64_t starts, int64_t edges, const int32_t *targets,
                        const double *weights, const double *restrict here,
                        double *restrict length, char *changed) {
    for (int64_t edge = 0; edge < edges; edge++) {
        double *there = length + targets[edge] * starts, weight = weights[edge];
        int64_t nearer = 0;
        for (int64_t start = 0; start < starts; start++) {
            double reach = here[start] + weight, known = there[start];
            nearer |= reach < known;
            there[start] = reach < known ? reach : known;
        }
        changed[targets[edge]] |= nearer;
    }
}

int autoddl_shortest(int64_t nodes, int64_t starts, const int32_t *order, const int32_t *begins,
                     const int32_t *targets, const double *weights, double *length) {
    char *changed = calloc(nodes + 1, 1); /* since its edges were last followed */
    double *here = malloc(sizeof(double) * (starts + 1)); /* as an edge may lead back to its node */
    int failed = !changed || !here ? -1 : 0;
    for (int64_t node = 0; node < nodes && !failed; node++)
        for (int64_t start = 0; start < starts; start++)
            changed[node] |= length[node * starts + start] < INFINITY;
    for (int again = !failed, forth = 1; again; forth = !forth) {
        again = 0;
        for (int64_t place = 0; place < nodes; place++) {
            int64_t node = order[forth ? place : nodes - 1 - place];
            if (!changed[node]) continue;
            again = 1;
            changed[node] = 0;
            memcpy(here, length + node * starts, sizeof(double) * starts);
            int64_t first = begins[node];
            extend(starts, begins[node + 1] - first, targets + first, weights + first, here, length,
                   changed);
        }
    }
    free(changed);
    free(here);
    return failed;
}

/* ---- Min-plus products ---- */

WIDE static void add_least(int64_t columns, const float *above, const float *restrict onward,
                           float *restrict found) {
    /* a column is loaded and stored once for four */
    const float *first = onward, *second = first + columns, *third = second + columns,
                *fourth = third + columns;
    float a = above[0], b = above[1], c = above[2], d = above[3];
    for (int64_t j = 0; j < columns; j++) {
        float w = a + first[j], x = b + second[j], y = c + third[j], z = d + fourth[j];
        float one = w < x ? w : x, other = y < z ? y : z;
        float both = one < other ? one : other;
        found[j] = both < found[j] ? both : found[j];
    }
}

static double least_of(const double *table, int64_t size) {
    double least = INFINITY;
    for (int64_t n = 0; n < size; n++) least = table[n] < least ? table[n] : least;
    return isfinite(least) ? least : 0.0;
}

/* A table as doubles, row by row. wide: of double precision; down, along: to the next row, column */
static double *doubles(const char *table, int wide, int64_t rows, int64_t columns, int64_t down,
                       int64_t along) {
    double *copy = malloc(sizeof(double) * (rows * columns + 1));
    if (!copy) return NULL;
    for (int64_t i = 0; i < rows; i++) {
        const char *row = table + i * down;
        double *to = copy + i * columns;
        if (wide)
            for (int64_t j = 0; j < columns; j++) to[j] = *(const double *)(row + j * along);
        else
            for (int64_t j = 0; j < columns; j++) to[j] = *(const float *)(row + j * along);
    }
    return copy;
}

int autoddl_min_plus(int64_t rows, int64_t inner, int64_t columns, const char *left, int left_wide,
                     int64_t left_down, int64_t left_along, const double *node, const char *right,
                     int right_wide, int64_t right_down, int64_t right_along, float *result) {
    int64_t fours = (inner + 3) / 4 * 4; /* what is added is infinite */
    double *weighted = doubles(left, left_wide, rows, inner, left_down, left_along);
    double *other = doubles(right, right_wide, inner, columns, right_down, right_along);
    float *onward = malloc(sizeof(float) * (fours * columns + 1));
    float *above = malloc(sizeof(float) * (fours + 1));
    int failed = !weighted || !other || !onward || !above ? -1 : 0;
    if (!failed) {
        for (int64_t i = 0; i < rows; i++)
            for (int64_t s = 0; s < inner; s++) weighted[i * inner + s] += node[s];
        double least = least_of(weighted, rows * inner), rest = least_of(other, inner * columns);
        float both = (float)(least + rest);
        for (int64_t n = 0; n < inner * columns; n++) onward[n] = (float)(other[n] - rest);
        for (int64_t n = inner * columns; n < fours * columns; n++) onward[n] = INFINITY;
        for (int64_t s = inner; s < fours; s++) above[s] = INFINITY;
        for (int64_t i = 0; i < rows; i++) {
            float *found = result + i * columns;
            for (int64_t s = 0; s < inner; s++) above[s] = (float)(weighted[i * inner + s] - least);
            for (int64_t j = 0; j < columns; j++) found[j] = INFINITY;
            for (int64_t s = 0; s < fours; s += 4)
                add_least(columns, above + s, onward + s * columns, found);
            for (int64_t j = 0; j < columns; j++) found[j] += both;
        }
    }
    free(weighted);
    free(other);
    free(onward);
    free(above);
    return failed;
}

/* ---- Messages between variables, there and back (`search.messages`) ---- */

typedef struct {
    int64_t variables;
    const int64_t *begins;  /* [variables + 1] where the scores of each begin among `nodes` */
    const double *nodes;    /* of each strategy of each variable */
    const double *part;     /* [variables] */
    const int64_t *later;   /* [variables + 1] where the edges to later ones begin; they are in order */
    const int64_t *earlier; /* [variables + 1] where those to earlier ones begin among `back` */
    const int64_t *back;
    const int64_t *ends;    /* [edges, 2] variables */
    const int64_t *given;   /* [edges, 2] where what each end is given begins among `messages` */
    const int64_t *tables;  /* [edges, 2] addresses of the table, and of that turned */
    double *messages;
} Wires;

/* Scores of a variable with all that it is given. */
WIDE static void with_given(const Wires *w, int64_t at, int64_t size, double *restrict total) {
    memcpy(total, w->nodes + w->begins[at], sizeof(double) * size);
    for (int64_t edge = w->later[at]; edge < w->later[at + 1]; edge++) {
        const double *own = w->messages + w->given[2 * edge];
        for (int64_t s = 0; s < size; s++) total[s] += own[s];
    }
    for (int64_t n = w->earlier[at]; n < w->earlier[at + 1]; n++) {
        const double *own = w->messages + w->given[2 * w->back[n] + 1];
        for (int64_t s = 0; s < size; s++) total[s] += own[s];
    }
}

/* Pass the least of part - given + table over an edge from its end `side`; what was taken off. */
WIDE static double pass_on(const Wires *w, int64_t edge, int64_t side, int64_t size,
                           const double *part, float *restrict above, float *restrict found) {
    const double *own = w->messages + w->given[2 * edge + side];
    double *other = w->messages + w->given[2 * edge + 1 - side];
    const float *table = (const float *)w->tables[2 * edge + side];
    int64_t to = w->ends[2 * edge + 1 - side], columns = w->begins[to + 1] - w->begins[to];
    int64_t s = 0;
    for (s = 0; s < size; s++) above[s] = (float)(part[s] - own[s]);
    for (int64_t t = 0; t < columns; t++) found[t] = INFINITY;
    for (s = 0; s + 4 <= size; s += 4) add_least(columns, above + s, table + s * columns, found);
    for (; s < size; s++)
        for (int64_t t = 0; t < columns; t++) {
            float sum = above[s] + table[s * columns + t];
            found[t] = sum < found[t] ? sum : found[t];
        }
    float least = INFINITY;
    for (int64_t t = 0; t < columns; t++) least = found[t] < least ? found[t] : least;
    for (int64_t t = 0; t < columns; t++) other[t] = found[t] - least;
    return least;
}

int autoddl_sweep(int64_t variables, const int64_t *begins, const double *nodes, const double *part,
                  const int64_t *later, const int64_t *earlier, const int64_t *back,
                  const int64_t *ends, const int64_t *given, const int64_t *tables,
                  double *messages, double *bound) {
    Wires w = {variables, begins, nodes, part, later, earlier, back, ends, given, tables, messages};
    int64_t most = 1;
    for (int64_t at = 0; at < variables; at++)
        most = begins[at + 1] - begins[at] > most ? begins[at + 1] - begins[at] : most;
    double *total = malloc(sizeof(double) * most);
    float *above = malloc(sizeof(float) * most), *found = malloc(sizeof(float) * most);
    int failed = !total || !above || !found ? -1 : 0;
    for (int64_t at = 0; at < variables && !failed; at++) {
        int64_t size = begins[at + 1] - begins[at];
        with_given(&w, at, size, total);
        for (int64_t s = 0; s < size; s++) total[s] *= part[at];
        for (int64_t edge = later[at]; edge < later[at + 1]; edge++)
            pass_on(&w, edge, 0, size, total, above, found);
    }
    *bound = 0.0;
    for (int64_t at = variables - 1; at >= 0 && !failed; at--) {
        int64_t size = begins[at + 1] - begins[at];
        with_given(&w, at, size, total);
        double least = INFINITY;
        for (int64_t s = 0; s < size; s++) least = total[s] < least ? total[s] : least;
        for (int64_t s = 0; s < size; s++) total[s] = (total[s] - least) * part[at];
        *bound += least;
        for (int64_t n = earlier[at]; n < earlier[at + 1]; n++)
            *bound += pass_on(&w, back[n], 1, size, total, above, found);
    }
    free(total);
    free(above);
    free(found);
    return failed;
}

/* ---- Fronts: pairs (cost, memory) of which no other is better in both ---- */

typedef struct {
    double cost, memory;
} Pair;

typedef struct {
    const int64_t *start;
    const Pair *pairs;
    const double *scores;
} Fronts;

typedef struct {
    int64_t *entries;
    Pair *pairs;
    int64_t size, room;
} Made;

typedef struct {
    Pair *pairs;
    int64_t room;
} Buffer;

static int make_room(Buffer *buffer, int64_t size) {
    if (size <= buffer->room) return 0;
    free(buffer->pairs);
    buffer->room = 2 * size;
    buffer->pairs = malloc(sizeof(Pair) * buffer->room);
    return buffer->pairs ? 0 : -1;
}

static int append(Made *made, int64_t entry, const Pair *pairs, int64_t count) {
    if (!count) return 0;
    if (made->size + count > made->room) {
        made->room = 2 * (made->size + count);
        int64_t *entries = realloc(made->entries, sizeof(int64_t) * made->room);
        if (entries) made->entries = entries;
        Pair *longer = realloc(made->pairs, sizeof(Pair) * made->room);
        if (longer) made->pairs = longer;
        if (!entries || !longer) return -1;
    }
    for (int64_t n = 0; n < count; n++) made->entries[made->size + n] = entry;
    memcpy(made->pairs + made->size, pairs, sizeof(Pair) * count);
    made->size += count;
    return 0;
}

/* Of `here`, which ends in infinite memory, and `fresh`, both by memory, the front. Its length. */
static int64_t merge(const Pair *here, int64_t length, const Pair *fresh, int64_t count,
                     Pair *there) {
    int64_t at = 0, end = 0;
    double least = INFINITY;
    for (int64_t n = 0; n < count; n++) {
        double cost = fresh[n].cost, memory = fresh[n].memory;
        for (; here[at].memory <= memory; at++)
            if (here[at].cost < least) {
                least = here[at].cost;
                if (end > 0 && there[end - 1].memory == here[at].memory) end--;
                there[end++] = here[at];
            }
        if (cost < least) {
            least = cost;
            if (end > 0 && there[end - 1].memory == memory) end--; /* rounded, these may be alike */
            there[end++] = fresh[n];
        }
    }
    while (at < length && here[at].cost >= least) at++;
    memcpy(there + end, here + at, sizeof(Pair) * (length - at));
    return end + length - at;
}

int autoddl_sum_fronts(int64_t matches, const int64_t *one, const int64_t *two, const int64_t *made,
                       const double *room, const int64_t *first_start, const double *first_pairs,
                       const double *first_scores, const int64_t *second_start,
                       const double *second_pairs, const double *second_scores, int64_t most,
                       int64_t *looked_at, int64_t *size, int64_t **entries, double **pairs) {
    Fronts first = {first_start, (const Pair *)first_pairs, first_scores};
    Fronts second = {second_start, (const Pair *)second_pairs, second_scores};
    Made found = {NULL, NULL, 0, 0};
    Buffer here = {NULL, 0}, there = {NULL, 0}, fresh = {NULL, 0};
    int64_t looked = 0, length = 0;
    int failed = make_room(&here, 1024) || make_room(&there, 1024);
    for (int64_t match = 0; match < matches && !failed && looked <= most; match++) {
        int64_t low = first.start[one[match]], high = first.start[one[match] + 1];
        int64_t bottom = second.start[two[match]], top = second.start[two[match] + 1];
        int is_first_long = high - low > top - bottom;
        Fronts longs = is_first_long ? first : second, shorts = is_first_long ? second : first;
        int64_t begin = is_first_long ? low : bottom, end = is_first_long ? high : top;
        int64_t from = is_first_long ? bottom : low, to = is_first_long ? top : high;
        looked += high - low;
        failed = make_room(&fresh, end - begin + 1);
        for (int64_t brief = from; brief < to && !failed; brief++) {
            double cost = shorts.pairs[brief].cost, memory = shorts.pairs[brief].memory;
            double score = shorts.scores[brief];
            int64_t count = 0;
            /* without a branch, which processors would often guess wrong */
            for (int64_t n = begin; n < end; n++) {
                fresh.pairs[count].cost = longs.pairs[n].cost + cost;
                fresh.pairs[count].memory = longs.pairs[n].memory + memory;
                count += is_first_long ? score <= room[match] - longs.scores[n]
                                       : longs.scores[n] <= room[match] - score;
            }
            if (!count) continue;
            looked += count;
            if (looked > most) break;
            failed = make_room(&there, length + count + 1);
            if (failed) break;
            here.pairs[length].memory = INFINITY;
            length = merge(here.pairs, length, fresh.pairs, count, there.pairs);
            Buffer before = here;
            here = there;
            there = before;
        }
        if (match + 1 == matches || made[match + 1] != made[match]) {
            if (!failed) failed = append(&found, made[match], here.pairs, length);
            length = 0;
        }
    }
    free(here.pairs);
    free(there.pairs);
    free(fresh.pairs);
    *looked_at = looked;
    *size = looked > most ? 0 : found.size;
    *entries = found.entries;
    *pairs = (double *)found.pairs;
    return failed ? -1 : 0;
}

void autoddl_free(void *entries, void *pairs) {
    free(entries);
    free(pairs);
}
