/* Limits as constants: CKV_LIMIT_ROWS and so on, from base/limits.def. */
#ifndef CKV_BASE_LIMITS_H
#define CKV_BASE_LIMITS_H

#include <stdint.h>

#define LIMIT(name, value, unit, what) static const uint64_t CKV_LIMIT_##name __attribute__((unused)) = UINT64_C(value);
#include "base/limits.def"
#undef LIMIT

#endif
