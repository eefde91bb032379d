base_SOURCES := base/error.c base/hash.c base/log.c base/random.c
