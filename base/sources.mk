base_SOURCES := base/crc32c.c base/error.c base/hash.c base/log.c base/random.c
