// A real cache, compressed in place without libchunkkv: the bare protocol (docs/protocol.md) with ZeroMQ and protobuf.
// Node cannot hand over descriptors by itself, so six functions of libc do.
//      npm ci --ignore-scripts && node bare.js needle-1k.safetensors
import fs from 'node:fs';
import koffi from 'koffi';
import protobuf from 'protobufjs';
import { Dealer } from 'zeromq';

const prefix = process.env.CHUNKKV_ENDPOINT ?? '/run/chunkkv/cpu/main';
const proto = process.env.CHUNKKV_PROTO ?? '../../proto/chunkkv.proto';
const schema = new protobuf.Root().loadSync(proto, { keepCase: true });
const Request = schema.lookupType('chunkkv.v1.Request'), Response = schema.lookupType('chunkkv.v1.Response');
koffi.struct('iovec', { base: 'void *', size: 'size_t' });
koffi.struct('msghdr', { name: 'void *', namelen: 'uint32_t', iov: 'iovec *', iovlen: 'size_t', control: 'void *',
  controllen: 'size_t', flags: 'int' });
const [socket, connect, sendmsg, recv, fcntl, memfdCreate] = ['int socket(int, int, int)',
  'int connect(int, void *, uint32_t)', 'long sendmsg(int, msghdr *, int)', 'long recv(int, void *, size_t, int)',
  'int fcntl(int, int, int)', 'int memfd_create(const char *, int)'].map((f) => koffi.load('libc.so.6').func(f));

// The side socket: one record of 96 bytes, perhaps with a descriptor, and one back.
const side = socket(1, 5, 0); // AF_UNIX, SOCK_SEQPACKET
connect(side, Buffer.from(`\x01\0${prefix}.fd\0`), prefix.length + 6);
function sideCall(type, kind = 0, size = 0, fd = -1) {
  const record = Buffer.alloc(96), control = fd < 0 ? null : Buffer.alloc(24);
  record.write('CKS1'), record.writeUInt16LE(1, 4), record.writeUInt16LE(type, 6);
  record.writeUInt32LE(kind, 20), record.writeUInt32LE(size, 24);
  if (control) [20, 0, 1, 1, fd].forEach((word, i) => control.writeUInt32LE(word, i * 4)); // SOL_SOCKET, SCM_RIGHTS
  sendmsg(side, { iov: [{ base: record, size: 96 }], iovlen: 1, control, controllen: control ? 24 : 0 }, 0);
  if (recv(side, record, 96, 0) !== 96 || record.readUInt32LE(16)) throw new Error('refused on the side socket');
  return record.subarray(56, 72); // the token
}

// Requests: one frame there, one back.
const zmq = new Dealer({ linger: 0, immediate: true });
zmq.connect(`ipc://${prefix}.zmq`);
let request_id = 0, session = {};
const nsec = (ahead) => (process.hrtime.bigint() + ahead).toString(); // CLOCK_MONOTONIC
async function call(body) {
  const request = { request_id: ++request_id, deadline_ns: nsec(30_000_000_000n), ...session, ...body };
  await zmq.send(Request.encode(Request.fromObject(request)).finish());
  const reply = Response.decode((await zmq.receive())[0]);
  if (reply.status.code) throw new Error(`${reply.status.field}: ${reply.status.detail}`);
  return reply;
}

// The memory: the tensors of the file as they are, 8 layers of keys, queries and values, 915456 bytes each.
const file = fs.readFileSync(process.argv[2]), before = file.subarray(8 + Number(file.readBigUInt64LE()));
const fd = memfdCreate('bare.js', 3); // closed on exec, may be sealed
fs.writeSync(fd, before, 0, before.length, 0);
fcntl(fd, 1033, 7); // F_ADD_SEALS: F_SEAL_SEAL, SHRINK, GROW
const hello = await call({ hello: { client: 'bare.js/1', now_ns: nsec(0n), attach_token: sideCall(1) } });
session = { boot_id: hello.boot_id, session_token: hello.welcome.session_token };
const { region_registered: { region_id } } = await call({
  register_region: { memfd_token: sideCall(3, 1, before.length, fd), size: before.length, access: 2 } });
const part = { dtype: 3, region_id, layer_stride: 915456, head_stride: 128 };
const plane = { ...part, layer_count: 8, token: { outer: 384 }, dim: { outer: 2 } };
const { cache_registered: { cache_id } } = await call({ register_cache: {
  groups: [{ layers: [0, 1, 2, 3, 4, 5, 6, 7], kv_heads: 3, q_heads: 9, head_dim_k: 64, head_dim_v: 64,
    tokens_per_block: 1024, num_blocks: 1 }], planes: [{ ...plane, kind: 1 }, { ...plane, kind: 2, offset: 522240 }] } });
const { compressed: { groups: [group] } } = await call({ compress: { cache_id, mode: 2, logical_len: 1024,
  groups: [{ physical_len: 1024, table: { form: 1, numbers: [0] }, policies: [{}], keep_ratio: 200000 }],
  queries: { ...part, rows: 64, row_stride: 1152, data: { region_id, offset: 393216, size: 6930432 } } } });

let wrong = 0;
const now = Buffer.alloc(before.length);
fs.readSync(fd, now, 0, now.length, 0);
group.sets.forEach(({ layer_first, runs }) => {
  for (let i = 0, from = layer_first * 915456, to = from; i < runs.length; i++) // rows dropped, kept, dropped, kept
    for (let k = 0; k < runs[i]; k++, from += 384)
      if (i % 2) wrong += now.compare(before, from, from + 384, to, to += 384) !== 0;
});
const digest = BigInt(group.kept_digest).toString(16).padStart(16, '0');
console.log(`kept ${group.physical_len} of 1024 rows, digest ${digest}, ${wrong} wrong`);
await call({ end_session: {} });
process.exit(wrong ? 1 : 0);
