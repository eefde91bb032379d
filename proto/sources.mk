proto_SOURCES := proto/status.c proto/runs.c proto/access.c proto/code_path.c
