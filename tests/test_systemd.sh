#!/bin/bash
# test_systemd.sh: the shipped units in a systemd of their own; see tests/systemd/boot.sh.
exec "$(dirname "$0")/systemd/boot.sh" "${CHUNKKV_BUILD:-build/release}"
