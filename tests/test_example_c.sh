#!/bin/bash
# The C example compresses real tensors in place, with the shared library and the one header.
exec "${0%/*}/run-example" c
