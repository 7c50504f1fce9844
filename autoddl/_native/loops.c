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

/* ---- Cheapest ways from many starts: one edge after the other, all starts at once ---- */

#define DEFINE_RELAX(NAME, REAL, FLAG)                                                             \
    WIDE static FLAG NAME##_edge(int64_t lanes, const REAL *restrict here, REAL *restrict there,   \
                                 REAL weight) {                                                    \
        FLAG better = 0;                                                                           \
        for (int64_t lane = 0; lane < lanes; lane++) {                                             \
            REAL reach = here[lane] + weight, known = there[lane];                                 \
            better |= reach < known;                                                               \
            there[lane] = reach < known ? reach : known;                                           \
        }                                                                                          \
        return better;                                                                             \
    }                                                                                              \
                                                                                                   \
    int NAME(int64_t nodes, int64_t lanes, int64_t edges, const int64_t *src, const int64_t *dst,  \
             const REAL *weights, REAL *length) {                                                  \
        int64_t *changed = malloc(sizeof(int64_t) * (nodes + 1)); /* sweep of a last change */     \
        if (!changed) return -1;                                                                   \
        for (int64_t node = 0; node < nodes; node++) {                                             \
            changed[node] = -2;                                                                    \
            for (int64_t lane = 0; lane < lanes; lane++)                                           \
                if (length[node * lanes + lane] < INFINITY) changed[node] = 0;                     \
        }                                                                                          \
        for (int64_t sweep = 1, last = 0; last == sweep - 1; sweep++)                              \
            for (int64_t edge = 0; edge < edges; edge++) {                                         \
                int64_t from = src[edge], to = dst[edge];                                          \
                if (changed[from] < sweep - 1 || from == to) continue;                             \
                if (NAME##_edge(lanes, length + from * lanes, length + to * lanes, weights[edge])) \
                    changed[to] = last = sweep;                                                    \
            }                                                                                      \
        free(changed);                                                                             \
        return 0;                                                                                  \
    }

DEFINE_RELAX(autoddl_relax_single, float, int32_t)
DEFINE_RELAX(autoddl_relax_double, double, int64_t)

/* ---- Cheapest ways from one start after the other, by Dijkstra's algorithm on a heap ---- */

typedef struct {
    double length;
    int64_t node;
} Reached;

typedef struct {
    Reached *items;
    int64_t *place; /* of each node among the items, or -1 */
    int64_t size;
} Heap;

static void put(Heap *heap, int64_t at, Reached item) {
    heap->items[at] = item;
    heap->place[item.node] = at;
}

static void rise(Heap *heap, int64_t at, Reached item) {
    while (at > 0) {
        int64_t above = (at - 1) / 4;
        if (heap->items[above].length <= item.length) break;
        put(heap, at, heap->items[above]);
        at = above;
    }
    put(heap, at, item);
}

static Reached take_least(Heap *heap) {
    Reached least = heap->items[0], item = heap->items[--heap->size];
    int64_t at = 0;
    heap->place[least.node] = -1;
    if (!heap->size) return least;
    for (;;) {
        int64_t first = 4 * at + 1, best = first;
        if (first >= heap->size) break;
        for (int64_t below = first + 1; below < first + 4 && below < heap->size; below++)
            if (heap->items[below].length < heap->items[best].length) best = below;
        if (item.length <= heap->items[best].length) break;
        put(heap, at, heap->items[best]);
        at = best;
    }
    put(heap, at, item);
    return least;
}

/* Edges by the node they leave: where those of each begin, their targets and weights. */
typedef struct {
    int32_t *begins, *targets;
    double *weights;
} Edges;

static int turn_around(Edges given, int64_t nodes, Edges *turned) {
    int64_t count = given.begins[nodes];
    turned->begins = calloc(nodes + 2, sizeof(int32_t));
    turned->targets = malloc(sizeof(int32_t) * (count + 1));
    turned->weights = malloc(sizeof(double) * (count + 1));
    if (!turned->begins || !turned->targets || !turned->weights) return -1;
    int32_t *next = turned->begins + 1; /* where the next edge of each goes; at the end, its end */
    for (int64_t edge = 0; edge < count; edge++) next[given.targets[edge] + 1]++;
    for (int64_t node = 0; node < nodes; node++) next[node + 1] += next[node];
    for (int64_t node = 0; node < nodes; node++)
        for (int32_t edge = given.begins[node]; edge < given.begins[node + 1]; edge++) {
            int32_t place = next[given.targets[edge]]++;
            turned->targets[place] = node;
            turned->weights[place] = given.weights[edge];
        }
    return 0;
}

int autoddl_shortest(int64_t nodes, int32_t *begins, int32_t *targets, double *weights,
                     int64_t count, const int64_t *starts, int backwards, double *found) {
    Edges edges = {begins, targets, weights}, turned = {NULL, NULL, NULL};
    Heap heap = {malloc(sizeof(Reached) * (nodes + 1)), malloc(sizeof(int64_t) * (nodes + 1)), 0};
    int failed = !heap.items || !heap.place ? -1 : 0;
    if (backwards && !failed) {
        failed = turn_around(edges, nodes, &turned);
        edges = turned;
    }
    for (int64_t number = 0; number < count && !failed; number++) {
        double *length = found + number * nodes;
        for (int64_t node = 0; node < nodes; node++) {
            length[node] = INFINITY;
            heap.place[node] = -1;
        }
        length[starts[number]] = 0.0;
        heap.size = 1;
        put(&heap, 0, (Reached){0.0, starts[number]});
        while (heap.size) {
            Reached here = take_least(&heap);
            for (int32_t n = edges.begins[here.node]; n < edges.begins[here.node + 1]; n++) {
                int64_t to = edges.targets[n];
                double reach = here.length + edges.weights[n];
                if (!(reach < length[to])) continue;
                length[to] = reach;
                int64_t at = heap.place[to] < 0 ? heap.size++ : heap.place[to];
                rise(&heap, at, (Reached){reach, to});
            }
        }
    }
    free(turned.begins);
    free(turned.targets);
    free(turned.weights);
    free(heap.items);
    free(heap.place);
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
