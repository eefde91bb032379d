#!/bin/bash
# The C program in README.md is short, compiles without a warning, and runs.
exec "${0%/*}/run-example" readme
