/*
 * Lists of jobs and of imports, in the order in which they came, linked by their
 * own `next`: each is in one list at a time, and changing hands never allocates.
 */
#ifndef CKV_KERNELS_FIFO_H
#define CKV_KERNELS_FIFO_H

#include "kernels/backend.h"

#include <stddef.h>

/*
 * CKV_FIFO(jobs, ckv_job) - struct ckv_jobs, a list of struct ckv_job, and what is done with it:
 *
 * ckv__jobs_init(list)      an empty list; a list cannot be copied, because it may point into itself
 * ckv__jobs_append(list, item)  behind the last
 * ckv__jobs_take(list)      the first one, no longer in the list; or NULL
 * ckv__jobs_move(from, to)  all of one list behind those of another, in unchanged order
 */
#define CKV_FIFO(name, type)                                                                                            \
        struct ckv_##name {                                                                                             \
                struct type *first, **last;     /* last: where the next one is linked in */                             \
        };                                                                                                              \
        static inline void ckv__##name##_init(struct ckv_##name *list) {                                                \
                list->first = NULL;                                                                                     \
                list->last = &list->first;                                                                              \
        }                                                                                                               \
        static inline void ckv__##name##_append(struct ckv_##name *list, struct type *item) {                           \
                item->next = NULL;                                                                                      \
                *list->last = item;                                                                                     \
                list->last = &item->next;                                                                               \
        }                                                                                                               \
        static inline struct type *ckv__##name##_take(struct ckv_##name *list) {                                        \
                struct type *item = list->first;                                                                        \
                                                                                                                        \
                if (!item)                                                                                              \
                        return NULL;                                                                                    \
                list->first = item->next;                                                                               \
                if (!list->first)                                                                                       \
                        list->last = &list->first;                                                                      \
                item->next = NULL;                                                                                      \
                return item;                                                                                            \
        }                                                                                                               \
        static inline void ckv__##name##_move(struct ckv_##name *from, struct ckv_##name *to) {                         \
                if (!from->first)                                                                                       \
                        return;                                                                                         \
                *to->last = from->first;                                                                                \
                to->last = from->last;                                                                                  \
                ckv__##name##_init(from);                                                                               \
        }

CKV_FIFO(jobs, ckv_job)
CKV_FIFO(imports, ckv_import)

#endif
