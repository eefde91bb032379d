#!/bin/bash
# An installed library is found by pkg-config, shared and static, and does the same job.
exec "${0%/*}/run-example" installed
