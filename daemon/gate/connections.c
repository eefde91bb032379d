/*
 * A table of at most 1024 peers.  libzmq tells nobody that a peer left (the
 * option for it is a draft), so entries go when the core says so, when a reply
 * finds nobody, or, the least recently used first, when the table is full.  A
 * peer whose entry went and who speaks again gets a new number; nothing but a
 * redirected answer depends on it.
 *
 * A routing id can pass to another process after its first owner left.  The
 * sender's address decides: another one is another connection.
 *
 * The search is linear: 1024 entries are a few microseconds, against some
 * hundred for a message.
 */
#include "daemon/gate/connections.h"

#include "base/macros.h"

#include <string.h>

static bool has_id(const struct ckv_connection *connection, const uint8_t *id, size_t id_bytes) {
        return connection->number && connection->id_bytes == id_bytes && memcmp(connection->id, id, id_bytes) == 0;
}

struct ckv_connection *ckv_connections_touch(struct ckv_connections *connections, const uint8_t *id, size_t id_bytes,
                                             const struct ckv_address *address, uint32_t *ret_gone) {
        struct ckv_connection *entry = &connections->entries[0];

        assert(id_bytes <= CKV_ROUTING_ID_MAX_BYTES);

        for (size_t i = 0; i < CKV_CONNECTIONS_MAX; i++) {
                struct ckv_connection *other = &connections->entries[i];

                if (has_id(other, id, id_bytes)) {
                        entry = other;
                        break;
                }
                /* a free entry was used at 0, before every other */
                if (other->used < entry->used)
                        entry = other;
        }
        if (has_id(entry, id, id_bytes) && ckv_address_equal(&entry->address, address)) {
                entry->used = ++connections->clock;
                *ret_gone = 0;
                return entry;
        }

        if (connections->last_number == UINT32_MAX)
                return NULL;
        *ret_gone = entry->number;
        *entry = (struct ckv_connection){
                .number = ++connections->last_number,
                .id_bytes = (uint8_t)id_bytes,
                .address = *address,
                .used = ++connections->clock,
        };
        memcpy(entry->id, id, id_bytes);
        return entry;
}

struct ckv_connection *ckv_connections_find(struct ckv_connections *connections, uint32_t number) {
        for (size_t i = 0; number && i < CKV_CONNECTIONS_MAX; i++)
                if (connections->entries[i].number == number)
                        return &connections->entries[i];
        return NULL;
}

void ckv_connections_forget(struct ckv_connection *connection) {
        *connection = (struct ckv_connection){ 0 };
}
