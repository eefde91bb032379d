ipc_SOURCES := ipc/ring.c ipc/seqpacket.c ipc/listen.c ipc/memfd.c ipc/peer.c ipc/filter.c ipc/landlock.c
