#!/bin/bash
# The Go example, by cgo, does the same job.
exec "${0%/*}/run-example" go
