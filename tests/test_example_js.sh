#!/bin/bash
# The JavaScript example speaks the protocol by itself and does the same job.
exec "${0%/*}/run-example" js
