/*
 * Lists of imports, linked by import->next, as kernels/cpu_jobs.h has them for jobs.
 */
#ifndef CKV_KERNELS_CUDA_QUEUES_H
#define CKV_KERNELS_CUDA_QUEUES_H

#include "kernels/backend.h"

struct ckv__imports {
        struct ckv_import *first, **last;       /* last: where the next one is linked in */
};

/* ckv__imports_init() - an empty list; a list cannot be copied, because it may point into itself */
static inline void ckv__imports_init(struct ckv__imports *imports) {
        imports->first = NULL;
        imports->last = &imports->first;
}

/* ckv__imports_append() - behind the last */
static inline void ckv__imports_append(struct ckv__imports *imports, struct ckv_import *import) {
        import->next = NULL;
        *imports->last = import;
        imports->last = &import->next;
}

/* ckv__imports_take() - the first import, no longer in the list; or NULL */
static inline struct ckv_import *ckv__imports_take(struct ckv__imports *imports) {
        struct ckv_import *import = imports->first;

        if (!import)
                return NULL;
        imports->first = import->next;
        if (!imports->first)
                imports->last = &imports->first;
        import->next = NULL;
        return import;
}

/* ckv__imports_move() - all imports of one list behind those of another, in unchanged order */
static inline void ckv__imports_move(struct ckv__imports *imports, struct ckv__imports *to) {
        if (!imports->first)
                return;
        *to->last = imports->first;
        to->last = imports->last;
        ckv__imports_init(imports);
}

#endif
