/* Counting what a message has that the schema does not. */
#ifndef CKV_GATE_UNKNOWN_H
#define CKV_GATE_UNKNOWN_H

#include <protobuf-c/protobuf-c.h>
#include <stdint.h>

/* ckv_unknown_fields() - unknown fields of a message and of all messages inside it */
uint64_t ckv_unknown_fields(const ProtobufCMessage *message);

#endif
