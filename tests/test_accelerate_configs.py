"""configs/accelerate: Accelerate can read each file, and each file has its launch command."""

import pytest
from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file

from tests.conftest import ROOT

FILES = sorted((ROOT / "configs/accelerate").glob("*.yaml"))
EXPECTED = {  # name -> type, machines, processes
    "cpu": ("NO", 1, 1), "one_gpu": ("NO", 1, 1), "several_gpus": ("MULTI_GPU", 1, 8), "fsdp2": ("FSDP", 1, 8),
    "deepspeed_zero2": ("DEEPSPEED", 1, 8), "deepspeed_zero3": ("DEEPSPEED", 1, 8), "two_nodes": ("MULTI_GPU", 2, 16),
}  # fmt: skip


def test_every_case_has_a_file():
    assert {path.stem for path in FILES} == set(EXPECTED)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_accelerate_reads_it(path):
    config = load_config_from_file(str(path))
    assert isinstance(config, ClusterConfig)
    assert (config.distributed_type.value, config.num_machines, config.num_processes) == EXPECTED[path.stem]
    assert config.use_cpu == (path.stem == "cpu")
    launch = f"accelerate launch --config_file configs/accelerate/{path.name} "
    assert launch in path.read_text() and path.read_text().startswith("# ")


def test_sharded_training_can_save_the_adapter():
    fsdp, zero3 = (
        load_config_from_file(str(ROOT / f"configs/accelerate/{n}.yaml")) for n in ("fsdp2", "deepspeed_zero3")
    )
    assert fsdp.fsdp_config["fsdp_version"] == 2
    assert fsdp.fsdp_config["fsdp_state_dict_type"] == "FULL_STATE_DICT"
    assert zero3.deepspeed_config["zero_stage"] == 3 and zero3.deepspeed_config["zero3_save_16bit_model"]
