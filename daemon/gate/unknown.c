/*
 * A walk over any message by its descriptor.  protobuf-c keeps unknown fields
 * per message; a limit that counted each message alone could be passed a
 * thousand times over.  The depth is that of the schema, in which no message
 * contains itself.
 */
#include "daemon/gate/unknown.h"

#include "base/macros.h"

#include <string.h>

/* is_present() - a oneof keeps one pointer for all its members: only the one that the case names is there */
static bool is_present(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field) {
        uint32_t which;

        if (!(field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF))
                return true;
        memcpy(&which, (const char *)message + field->quantifier_offset, sizeof(which));
        return which == field->id;
}

uint64_t ckv_unknown_fields(const ProtobufCMessage *message) {
        uint64_t total = message->n_unknown_fields;

        for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
                const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
                const char *at = (const char *)message + field->offset;

                if (field->type != PROTOBUF_C_TYPE_MESSAGE || !is_present(message, field))
                        continue;
                if (field->label == PROTOBUF_C_LABEL_REPEATED) {
                        ProtobufCMessage **children;
                        size_t count;

                        memcpy(&count, (const char *)message + field->quantifier_offset, sizeof(count));
                        memcpy(&children, at, sizeof(children));
                        for (size_t k = 0; k < count; k++)
                                total += ckv_unknown_fields(children[k]);
                } else {
                        const ProtobufCMessage *child;

                        memcpy(&child, at, sizeof(child));
                        if (child)
                                total += ckv_unknown_fields(child);
                }
        }
        return total;
}
