from rollbook.cli.request import new_folder


def test_a_run_without_a_folder_gets_a_new_one_named_after_its_environment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = new_folder("reasoning_gym:chain_sum?max_terms=2")
    assert first.parent.name == "runs"
    assert first.name.startswith("reasoning_gym-chain_sum-")
    first.mkdir(parents=True)
    assert not new_folder("reasoning_gym:chain_sum").exists()


def test_a_path_makes_a_name_without_slashes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert new_folder("../my envs/sums.py:Sums").name.startswith("my-envs-sums.py-Sums-")
