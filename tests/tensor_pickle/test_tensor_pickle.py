"""The pickled tensor list of copy mode, against torch.

Goal: what torch pickles, the server reads, and what the server writes, torch loads, byte for byte, for every dtype.
Method: random bytes viewed as tensors; tensor_pickle_tool reads or writes the pickle, torch does the other half.
"""

import os
import pathlib
import pickle
import random
import subprocess

import pytest
import torch

TOOL = os.environ["LARDER_TENSOR_PICKLE_TOOL"]
SEED = int(os.environ.get("LARDER_TEST_SEED", "1"))
SHAPE = (2, 3, 4, 5)

DTYPES = [
    "bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2",
]  # fmt: skip


def tensor_of(dtype_name, shape=SHAPE, salt=0):
    """A contiguous tensor of random bytes with a storage of its own."""
    dtype = getattr(torch, dtype_name)
    size = dtype.itemsize
    for dimension in shape:
        size *= dimension
    content = bytearray(random.Random(f"{SEED} {dtype_name} {salt}").randbytes(size))
    if dtype is torch.bool:
        content = bytearray(byte & 1 for byte in content)
    return torch.frombuffer(content, dtype=torch.uint8).clone().view(dtype).reshape(shape)


def bytes_of(tensor):
    """The row-major bytes; by way of integers, as torch cannot copy every strided dtype."""
    same_size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
    return tensor.view(same_size[tensor.dtype.itemsize]).contiguous().view(torch.uint8).numpy().tobytes()


def describe(tensor):
    name = str(tensor.dtype).removeprefix("torch.")
    return f"{name}[{', '.join(str(size) for size in tensor.shape)}] {bytes_of(tensor).hex()}"


def read(path, tensors, protocol):
    path.write_bytes(pickle.dumps(tensors, protocol=protocol))
    done = subprocess.run([TOOL, "read", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def write(folder, dtype_name, shape, objects):
    (folder / "objects").write_bytes(objects)
    dimensions = ",".join(str(size) for size in shape)
    subprocess.run([TOOL, "write", dtype_name, dimensions, folder / "objects", folder / "pickle"], check=True)
    return pickle.loads((folder / "pickle").read_bytes())


@pytest.mark.parametrize("dtype_name", DTYPES)
@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_reads_lists_of_every_dtype(tmp_path, dtype_name, protocol):
    for count in (0, 1, 3):
        tensors = [tensor_of(dtype_name, salt=index) for index in range(count)]
        assert read(tmp_path / "pickle", tensors, protocol) == [describe(tensor) for tensor in tensors]


@pytest.mark.parametrize("dtype_name", DTYPES)
def test_torch_loads_what_is_written(tmp_path, dtype_name):
    for count in (0, 1, 3):
        tensors = [tensor_of(dtype_name, salt=index) for index in range(count)]
        loaded = write(tmp_path, dtype_name, SHAPE, b"".join(bytes_of(tensor) for tensor in tensors))
        assert [describe(tensor) for tensor in loaded] == [describe(tensor) for tensor in tensors]
        assert all(tensor.is_contiguous() and not tensor.requires_grad for tensor in loaded)


@pytest.mark.parametrize("dtype_name", ["float32", "bfloat16", "uint8", "float8_e4m3fn", "complex128"])
def test_reads_strided_views(tmp_path, dtype_name):
    base = tensor_of(dtype_name, (6, 7, 8))
    views = [
        base.permute(2, 0, 1),
        base[1:5, ::2, 3:],
        base[:, 3],
        base[2:3].expand(4, 7, 8),
        base.transpose(0, 2)[1::3],
        base[5, 6, 7:8],
    ]
    assert read(tmp_path / "pickle", views, 4) == [describe(view) for view in views]


def test_reads_shared_storages_and_repeated_tensors(tmp_path):
    base = tensor_of("bfloat16", (4, 8))
    tensors = [base[0:2], base[2:4], base, base, base.view(torch.int16), base[0:2]]
    assert read(tmp_path / "pickle", tensors, 4) == [describe(tensor) for tensor in tensors]


def test_reads_more_than_a_thousand_tensors(tmp_path):
    tensors = [tensor_of("float16", (3, 2), salt=index) for index in range(2500)]
    assert read(tmp_path / "pickle", tensors, 4) == [describe(tensor) for tensor in tensors]


def test_reads_blobs_that_lie_outside_frames(tmp_path):
    tensors = [tensor_of("float32", (1, 300, 100), salt=index) for index in range(3)]
    assert read(tmp_path / "pickle", tensors, 4) == [describe(tensor) for tensor in tensors]


def test_torch_loads_more_than_a_thousand_tensors(tmp_path):
    tensors = [tensor_of("bfloat16", (1, 17, 9), salt=index) for index in range(2500)]
    loaded = write(tmp_path, "bfloat16", (1, 17, 9), b"".join(bytes_of(tensor) for tensor in tensors))
    assert [bytes_of(tensor) for tensor in loaded] == [bytes_of(tensor) for tensor in tensors]


def test_torch_loads_the_recorded_pickle():
    """What src/tensors/tensor_pickle_test.cc compares the writer with, also where no Python is at hand."""
    folder = pathlib.Path(__file__).parent.parent / "fixtures" / "tensor_pickles"
    loaded = pickle.loads((folder / "written_float8_e4m3fn").read_bytes())
    assert [tensor.dtype for tensor in loaded] == [torch.float8_e4m3fn] * 3
    expected = bytes((i * 7 + i // 251) & 255 for i in range(36))
    assert b"".join(bytes_of(tensor) for tensor in loaded) == expected


def test_refuses_what_is_no_plain_tensor(tmp_path):
    conjugated = tensor_of("complex64", (2, 2)).conj()
    for content in ([conjugated], [{}], tensor_of("uint8"), [torch.nn.Parameter(torch.zeros(2))], [slice(1)]):
        (tmp_path / "pickle").write_bytes(pickle.dumps(content, protocol=4))
        done = subprocess.run([TOOL, "read", tmp_path / "pickle"], capture_output=True, text=True)
        assert done.returncode == 1, content
