from __future__ import annotations

from pathlib import Path

import pytest

from rollbook.clusters.profile import ClusterProfile, read_profile
from rollbook.errors import UsageError


def read(tmp_path: Path, text: str) -> ClusterProfile:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    return read_profile(path)


def test_a_profile_says_how_jobs_are_asked_for(tmp_path: Path) -> None:
    profile = read(
        tmp_path,
        """
        account: my-account
        partition: batch
        time: 4:00:00
        gpus: 8
        container: pyxis
        images: {vllm: /images/vllm.sqsh}
        server: {image: vllm, mounts: ["/models:/models:ro"], environment: {VLLM_USE_V1: "1"}, workdir: /tmp}
        secrets: [HF_TOKEN]
        setup: [module load cuda]
        """,
    )
    assert (profile.account, profile.time, profile.gpus) == ("my-account", "4:00:00", 8)
    assert profile.image_of("server") == "/images/vllm.sqsh"
    assert profile.image_of("worker") is None
    assert profile.server.environment == {"VLLM_USE_V1": "1"}


@pytest.mark.parametrize("time", ["240", "90:00", "4:00:00", "1-12", "1-12:30", "1-12:30:00"])
def test_times_are_taken_as_they_are_written(tmp_path: Path, time: str) -> None:
    assert read(tmp_path, f"time: {time}\n").time == time


def test_names_that_people_know_are_understood(tmp_path: Path) -> None:
    profile = read(
        tmp_path,
        "expname: math\nnum_random_seeds: 16\nstarting_seed: 4\nnum_chunks: 64\n"
        "dependent_jobs: 3\nrun_after: runs/other\nrerun_done: false\n",
    )
    assert (profile.name, profile.samples, profile.seed, profile.workers) == ("math", 16, 4, 64)
    assert (profile.restarts, profile.after) == (3, ["runs/other"])


@pytest.mark.parametrize("seeds", ["'0..7'", "[0, 1, 2, 3, 4, 5, 6, 7]", "'0,1,2,3,4,5,6,7'"])
def test_lists_of_seeds_are_samples_from_a_seed_on(tmp_path: Path, seeds: str) -> None:
    profile = read(tmp_path, f"random_seeds: {seeds}\n")
    assert (profile.samples, profile.seed) == (8, 0)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("partiton: batch", "a cluster profile has no 'partiton'; there are name, account, partition"),
        ("worker: {imge: a}", "worker has no 'imge'; there are image, image_path, mounts, environment, workdir"),
        ("time: soon", "time: 'soon' is not a Slurm time"),
        ("gpus: many", "gpus: expected int"),
        ("gpus: 8\ngres: gpu:8", "gpus and gres both set which devices"),
        ("expname: a\nname: b", "expname is called name here, and that is given as well"),
        ("chunk_ids: '0,3'", "workers claim chunks themselves"),
        ("rerun_done: true", "what is scored stays scored"),
        ("random_seeds: '0,2,5'", "give seeds without gaps"),
        ("random_seeds: '0..3'\nnum_random_seeds: 4", "random_seeds gives samples too"),
        ("options: ['--array=0-3']", "--array is set by Rollbook"),
        ("options: ['--arr=0-3']", "--array is set by Rollbook"),
        ("options: ['--dep=afterok:9']", "--dependency is set by Rollbook"),
        ("options: ['--export=NONE']", "name what they must have under `secrets:`"),
        ("random_seeds: '0..99999999999'", "more than 1000000 samples of every task"),
        ("options: ['-C h100']", "write options of sbatch as --name=value"),
        ("options: ['hetjob']", "a heterogeneous job cannot be an array"),
        ("setup: ['#SBATCH --mem=0']", "options of sbatch belong in `options:`"),
        ('name: "a\\nb"', "has to be one line of printable text"),
        ("container: docker", "container: invalid enum value"),
        ("worker: {image: vllm}", "images has no 'vllm'; there are none"),
        ("images: {a: b}\nworker: {image: c}", "images has no 'c'; there are a;"),
        ("server: {image_path: /a.sqsh}", "an image needs a runtime"),
        ("images: {a: b}\ncontainer: pyxis\nworker: {image: a, image_path: b}", "image and image_path are both given"),
        (
            "images: {a: b, c: d}\ncontainer: pyxis\nworker: {image: a}\nserver: {image: c}",
            "worker and server have different images",
        ),
        ("mounts: ['data:/data']", "write /here:/there"),
        ("secrets: ['HF_TOKEN=abc']", "secrets: HF_TOKEN: give the name of a variable, never its value"),
        ("worker: {environment: {HF_TOKEN: abc}}", "HF_TOKEN looks like a secret"),
        ("worker: {environment: {'A-B': abc}}", "'A-B' is not the name of a variable"),
        ("ssh_host: login", "a cluster profile has no 'ssh_host'"),
        ("- a", "a cluster profile is written as `key: value`"),
    ],
)
def test_a_mistake_is_one_line_with_a_way_out(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, f"{text}\n")
    assert why in str(caught.value)
    assert str(tmp_path / "cluster.yaml") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "abc" not in str(caught.value)
