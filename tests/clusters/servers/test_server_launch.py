from __future__ import annotations

import pytest

from rollbook.clusters.job_files import ServerSpec
from rollbook.clusters.servers.launch import HeadAddress, assign_devices, make_server_argv
from rollbook.errors import UsageError


def test_vllm_is_told_the_name_the_address_and_the_gpus() -> None:
    serve = ServerSpec(kind="vllm", name="policy", model_path="/models/m", tensor_parallel=4, data_parallel=2)
    assert make_server_argv(serve, "127.0.0.1", 31000) == [
        *("vllm", "serve", "/models/m", "--served-model-name", "policy", "--host", "127.0.0.1", "--port", "31000"),
        *("--tensor-parallel-size", "4", "--data-parallel-size", "2"),
    ]


def test_sglang_is_told_the_same_in_its_words() -> None:
    serve = ServerSpec(kind="sglang", name="policy", model_path="/models/m", tensor_parallel=2)
    assert make_server_argv(serve, "0.0.0.0", 31000) == [
        *("python3", "-m", "sglang.launch_server", "--model-path", "/models/m", "--served-model-name", "policy"),
        *("--host", "0.0.0.0", "--port", "31000", "--tp-size", "2"),
    ]


def test_several_nodes_are_joined_by_the_means_of_vllm() -> None:
    serve = ServerSpec(
        kind="vllm", name="m", model_path="/m", tensor_parallel=16, nodes=2, args=["--max-model-len=4096"]
    )
    first, second = (make_server_argv(serve, "0.0.0.0", 31000, HeadAddress("n1", 31001), rank) for rank in range(2))
    assert first == [
        *("vllm", "serve", "/m", "--served-model-name", "m", "--host", "0.0.0.0", "--port", "31000"),
        *("--tensor-parallel-size", "16", "--distributed-executor-backend", "mp", "--nnodes", "2", "--node-rank", "0"),
        *("--master-addr", "n1", "--master-port", "31001", "--max-model-len=4096"),
    ]
    assert second == [*first[:16], "1", *first[17:-1], "--headless", first[-1]]


def test_several_nodes_are_joined_by_the_means_of_sglang() -> None:
    serve = ServerSpec(kind="sglang", name="m", model_path="/m", tensor_parallel=16, nodes=2)
    assert make_server_argv(serve, "0.0.0.0", 31000, HeadAddress("n1", 31001), 1)[-8:] == [
        *("--tp-size", "16", "--nnodes", "2", "--node-rank", "1", "--dist-init-addr", "n1:31001"),
    ]


def test_a_command_is_told_its_rank_and_where_the_first_is() -> None:
    words = ["serve", "{port}", "{rank}/{nodes}", "{head}:{head_port}"]
    serve = ServerSpec(kind="command", name="m", command=words, nodes=3)
    assert make_server_argv(serve, "h", 80, HeadAddress("n1", 81), 2) == ["serve", "80", "2/3", "n1:81"]
    assert assign_devices(serve, "0,1") == [None]


def test_remote_code_is_trusted_only_when_asked() -> None:
    serve = ServerSpec(kind="vllm", name="m", model_path="m")
    assert "--trust-remote-code" not in make_server_argv(serve, "h", 1)
    asked = ServerSpec(kind="vllm", name="m", model_path="m", args=["--trust-remote-code", "--max-model-len=4096"])
    assert make_server_argv(asked, "h", 1)[-2:] == ["--trust-remote-code", "--max-model-len=4096"]


@pytest.mark.parametrize(
    ("replicas", "tensor", "visible", "shares"),
    [
        (1, 8, "0,1,2,3,4,5,6,7", ["0,1,2,3,4,5,6,7"]),
        (4, 2, "0,1,2,3,4,5,6,7", ["0,1", "2,3", "4,5", "6,7"]),
        (2, 1, "GPU-a,GPU-b", ["GPU-a", "GPU-b"]),
        (2, 1, None, [None, None]),
        (1, 1, "", [None]),
    ],
)
def test_the_gpus_of_a_node_are_split_between_replicas(
    replicas: int, tensor: int, visible: str | None, shares: list[str | None]
) -> None:
    serve = ServerSpec(kind="vllm", name="m", model_path="m", replicas=replicas, tensor_parallel=tensor)
    assert assign_devices(serve, visible) == shares


def test_more_gpus_than_there_are_is_a_mistake() -> None:
    serve = ServerSpec(kind="vllm", name="m", model_path="m", replicas=2, tensor_parallel=4)
    with pytest.raises(UsageError, match="2 replicas of 4 GPUs each: this node gives the job 4"):
        assign_devices(serve, "0,1,2,3")
