#!/bin/bash
# The C++ example does the same job.
exec "${0%/*}/run-example" cpp
