base_SOURCES := base/crc32c.c base/error.c base/guard.c base/hash.c base/log.c base/random.c
# named points at which a test build can be told to die (base/points.h)
ifeq ($(POINTS),1)
base_SOURCES += base/points.c
endif
