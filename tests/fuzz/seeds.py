"""seeds: first inputs of the fuzz corpora, made of honest messages: a fuzzer then starts behind the easy refusals.

PYTHONPATH=clients/python/src python tests/fuzz/seeds.py tests/fuzz/corpus
"""

import json
import struct
import sys
from pathlib import Path

from chunkkv._pb import chunkkv_pb2 as pb

BOOT, TOKEN = bytes(range(1, 17)), bytes(range(17, 33))


def request(**body) -> pb.Request:
    """An envelope that a running daemon would accept."""
    return pb.Request(request_id=7, deadline_ns=2_000_000_000, generation=9, boot_id=BOOT, session_token=TOKEN, **body)


def compress(**fields) -> pb.Compress:
    """An ordinary job: one group, a table of blocks, window queries."""
    job = pb.GroupJob(group=0, physical_len=100, keep_ratio=200_000)
    job.table.form = pb.TABLE_BLOCKS
    job.table.numbers.extend(range(7))
    body = pb.Compress(cache_id=1, mode=pb.MODE_IN_PLACE, logical_len=100, groups=[job], **fields)
    body.queries.data.region_id = 1
    body.queries.data.size = 32 * 4 * 64 * 4
    body.queries.dtype = pb.DTYPE_F32
    body.queries.rows = 32
    body.queries.head_stride = 256
    body.queries.row_stride = 1024
    body.queries.layer_stride = 32768
    return body


def cache() -> pb.RegisterCache:
    """Two layers in bfloat16."""
    body = pb.RegisterCache()
    body.groups.add(
        layers=[0, 1], kv_heads=2, q_heads=4, head_dim_k=64, head_dim_v=64, tokens_per_block=16, num_blocks=8
    )
    for kind in (pb.PLANE_K, pb.PLANE_V):
        plane = body.planes.add(
            kind=kind,
            dtype=pb.DTYPE_BF16,
            layer_count=2,
            region_id=1,
            layer_stride=32768,
            block_stride=4096,
            head_stride=128,
        )
        plane.token.outer, plane.dim.outer = 256, 2
    return body


def everything(job: pb.GroupJob) -> None:
    """Set every field of a group, also such as do not go together."""
    job.policies.add(
        profile=pb.PROFILE_RETRIEVAL, window=8, chunk=7, pool=pb.POOL_MAX, pool_size=13, heads=pb.HEADS_MAX,
        sinks=pb.Count(value=0), recent=pb.Count(value=3), contrast_first=pb.Count(value=32), scale=0.125, softcap=30.0,
    )  # fmt: skip
    job.policies.add(layer_first=1, selector=pb.SELECTOR_TOKEN, scorer=pb.SCORER_KEYDIFF)
    job.protect.add(first=3, count=9)
    job.position_runs.extend([0, 50, 4, 50])
    job.chunk_lengths.extend([40, 60])
    job.given_runs.extend([0, 10, 30, 20])
    job.scores_out.region_id = 1
    job.destination.form = pb.TABLE_BLOCK_RUNS
    job.destination.numbers.extend([10, 7])


def requests() -> dict[str, pb.Request]:
    """One honest message of each kind."""
    full = compress(hold=True, control_slot=1, control_use=5, want_kept_mass=True, reply_form=pb.REPLY_IN_SLOT)
    everything(full.groups[0])
    large = compress()
    large.groups[0].physical_len = 4096
    large.groups[0].table.numbers[:] = range(256)
    region = pb.RegisterRegion(memfd_token=TOKEN, size=1 << 20, access=pb.ACCESS_READ_WRITE)
    cuda = pb.RegisterRegion(device_uuid=BOOT, size=1 << 20, access=pb.ACCESS_READ)
    cuda.cuda_ipc.handle = bytes(64)
    cuda.cuda_ipc.alloc_size = 1 << 21
    hello = pb.Request(
        request_id=1, hello=pb.Hello(minor_max=1, client="seed/1", now_ns=5, attach_token=TOKEN, needs=[3, 7])
    )
    return {
        "hello": hello,
        "ping": request(ping=pb.Ping(), traceparent="00-" + "1" * 32 + "-" + "2" * 16 + "-01"),
        "status": request(get_status=pb.GetStatus(target_request_id=3)),
        "end": request(end_session=pb.EndSession()),
        "region": request(register_region=region),
        "region_cuda": request(register_region=cuda),
        "region_vmm": request(
            register_region=pb.RegisterRegion(vmm_tokens=TOKEN * 3, size=4096, device_uuid=BOOT, access=2)
        ),
        "region_shm": request(
            register_region=pb.RegisterRegion(posix_shm="/chunkkv-1000-" + "0123456789abcdef" * 2, size=4096, access=1)
        ),
        "unregister": request(unregister_region=pb.UnregisterRegion(region_id=1)),
        "cache": request(register_cache=cache()),
        "uncache": request(unregister_cache=pb.UnregisterCache(cache_id=1)),
        "compress": request(compress=compress()),
        "compress_full": request(compress=full),
        "compress_large": request(compress=large),
        "commit": request(commit=pb.Commit(target_request_id=6)),
        "cancel": request(cancel=pb.Cancel(target_request_id=6)),
        "repair": request(repair=pb.Repair(target_request_id=6, control_slot=1, job=compress())),
    }


def safetensors(header: dict, data: bytes) -> bytes:
    """A file of this header and these bytes."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def patch(*changes: tuple[int, int, int]) -> bytes:
    """What fuzz_patch() of fuzz.h reads: (offset, width, value) of each change."""
    widths = {1: 0, 2: 1, 4: 2, 8: 3}
    out = bytes([len(changes)])
    for offset, width, value in changes:
        out += struct.pack("<HBB", offset, widths[width], 255) + value.to_bytes(width, "little")
    return out


def core(
    rows: int = 100, body: bytes = b"\0", policy: bytes = b"\0", group: bytes = b"\0", page: bool = False
) -> bytes:
    """An honest job of fuzz_core.c: one group, or two that are alike, with a policy each."""
    groups = (b"\0" + group) * 2
    policies = (b"\x01" + policy) * 2
    return bytes([rows - 1]) + body + groups + policies + b"\x01" + bytes([page])


def core_seeds() -> dict[str, bytes]:
    """Every mode, scorer, selector and profile once; offsets are those of proto/records.h."""
    mode, hold, reply_form, single_pass = 4, 5, 6, 7
    in_place = (mode, 1, 2)
    seeds = {f"scorer_{n}": core(policy=patch((1, 1, n))) for n in range(9)}
    seeds |= {f"selector_{n}": core(policy=patch((2, 1, n), (9, 1, 2))) for n in range(8)}
    seeds |= {f"profile_{n}": core(policy=patch((0, 1, n))) for n in range(5)}
    seeds |= {f"mode_{n}": core(body=patch((mode, 1, n)), page=True) for n in range(1, 4)}
    seeds["hold"] = core(body=patch(in_place, (hold, 1, 1)), page=True)
    seeds["in_slot"] = core(body=patch(in_place, (reply_form, 1, 3)), page=True)
    seeds["single_pass"] = core(body=patch(in_place, (single_pass, 1, 1)), page=True)
    seeds["each"] = core(body=patch(in_place), policy=patch((2, 1, 3), (5, 1, 3)), page=True)
    return seeds


def main(corpus: Path) -> None:
    """Write the files."""

    def write(target: str, name: str, content: bytes) -> None:
        (corpus / target).mkdir(parents=True, exist_ok=True)
        (corpus / target / name).write_bytes(content)

    for name, message in requests().items():
        write("decode", name, message.SerializeToString())
    write("decode", "empty_submessages", b"\x22\x00" * 500)
    write("decode", "oneof_twice", request(ping=pb.Ping()).SerializeToString() + b"\xaa\x01\x00")

    write(
        "options",
        "all",
        b"--runtime-dir=/tmp/x\n--endpoint=a\n--endpoint\nb-2\n--threads=2\n--log-level=debug\n--mapped-bytes=4G",
    )
    write("options", "help", b"--help")
    write(
        "options", "wrong", b"--threads=1e3\n--socket-mode=999\n--rows=-1\n--queued-bytes=18446744073709551616\nstray"
    )

    tensors = {
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
        "__metadata__": {"rows": "2", "model": "x"},
    }
    write("safetensors", "two", safetensors(tensors, bytes(32)))
    write("safetensors", "empty", safetensors({}, b""))
    write("safetensors", "scalar", safetensors({"s": {"dtype": "I8", "shape": [], "data_offsets": [0, 1]}}, b"\x05"))
    write("safetensors", "pieces", json.dumps(["Once", " upon", "\u00e9", ""]).encode())
    write("safetensors", "tokens", json.dumps({"tokens": ["a", "b"]}).encode())

    # fuzz_channel.c: records: type, offset, bytes, changes, length of each; answers: bytes of each, whether to flush
    plain = struct.pack("<BIIBB", 2, 0, 0, 0, 0)
    answers = b"\x02" + struct.pack("<BHB", 1, 100, 1) + struct.pack("<BIB", 0, 2 << 20, 0)
    write("channel", "pings", b"\x03" + plain * 3 + answers)
    two = struct.pack("<BIIBB", 9, 0, 4096, 0, 0) + struct.pack("<BIIBB", 9, 4096, 64, 0, 0)
    write("channel", "attachment", b"\x02" + two + answers)
    write("channel", "outside", b"\x01" + struct.pack("<BIIBB", 9, (4 << 20) - 8, 4096, 0, 0))
    write("channel", "short", b"\x01" + struct.pack("<BIIBBH", 2, 0, 0, 0, 1, 100))

    # fuzz_core.c, fuzz_repair.c: nothing changed; fuzz_side.c: descriptor, type and changes of each record
    for name, content in core_seeds().items():
        write("core", name, content)
    write("repair", "untouched", b"")
    write("repair", "phase", patch((0, 4, 5)))
    write("repair", "steps_done", patch((72, 4, 3)))
    attach, offer = b"\0\x01\0", b"\x01\x03\0"
    write("side", "attach_offer", attach + offer + b"\0\x05\0" + offer)
    write("side", "page", b"\x03\x01\0" + b"\x02\x03\0")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
