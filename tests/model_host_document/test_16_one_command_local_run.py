# ruff: noqa: E501 - one row of a table is one line
"""Document 1, "One-command local run": ``sbproxy run``."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from support.cli import sbproxy
from support.daemon import tiny_catalog

PROVED_ELSEWHERE = {
    "it answers, prints the five things only then, and cleans up however it ends": "tests/e2e/test_run_command.py::test_run_answers_and_cleans_up",
    "the banner: endpoint, credential, the two settings, a curl line": "tests/cli/test_cli_run.py::test_the_banner_is_in_the_order_of_section_11",
    "the admin password has 256 random bits and is another one each time": "tests/cli/test_cli_run.py::test_each_run_has_its_own_password",
    "the configuration it makes loads": "tests/cli/test_cli_run.py::test_a_dry_run_prints_a_configuration_that_loads",
    "the private file is its owner's alone and goes also when something fails": "tests/cli/test_cli_run.py::test_the_private_file_is_private_and_goes",
    "a port in use is told before anything is fetched": "tests/e2e/test_run_command.py::test_a_port_in_use_is_told_before_anything_is_fetched",
    "references beside the catalog are refused": "tests/cli/test_cli_run.py::test_references_beside_the_catalog_are_refused",
    "an unknown variant lists those there are": "tests/cli/test_cli_run.py::test_an_unknown_variant_lists_those_there_are",
    "a relative catalog_file starts at the directory of sb.yml": "tests/config/test_config_files.py::test_the_catalog_file_is_found_from_the_file",
}


def test_the_page_s_command_line_makes_the_canonical_runtime() -> None:
    """One exact variant, verified and started before it is called ready, on loopback with a credential of its own."""
    ran = sbproxy("run", "qwen2.5-0.5b-instruct", "--variant", "q4_k_m", "--dry-run")
    assert ran.code == 0, ran.err
    document = yaml.safe_load(ran.out)
    proxy = document["proxy"]
    (deployment,) = proxy["model_host"]["deployments"].values()
    assert (deployment["model"], deployment["variant"]) == ("qwen2.5-0.5b-instruct", "q4_k_m")
    assert (deployment["pull"], deployment["warm"]) == ("on_boot", True)
    assert (proxy["bind_address"], proxy["admin"]["bind"]) == ("127.0.0.1", "127.0.0.1")
    assert len(bytes.fromhex(proxy["admin"]["password"])) == 32
    for origin in document["origins"].values():
        (provider,) = origin["action"]["providers"]
        assert provider["provider_type"] == "managed_model"


@pytest.mark.parametrize("reference", ["hf:Org/Repo", "hf:Org/Repo:Q4_K_M"])
def test_a_raw_reference_has_no_place_here(reference: str) -> None:
    """It would bypass the catalog's identity, so it is refused, with the catalog as the way out."""
    ran = sbproxy("run", reference)
    assert (ran.code, ran.out) == (2, "")
    assert "catalog" in ran.err


def test_another_catalog_is_chosen_in_the_file_relative_to_it(tmp_path: Path) -> None:
    """catalog_file selects the models of managed deployments; without it the built-in catalog is meant."""
    (tmp_path / "below").mkdir()
    tiny_catalog(tmp_path / "below")
    path = tmp_path / "sb.yml"
    deployments = {"deployments": {"tiny": {"model": "tiny-model"}}}
    path.write_text(yaml.safe_dump({"proxy": {"model_host": {"catalog_file": "below/catalog.yml", **deployments}}}))
    assert sbproxy("validate", str(path)).code == 0
    path.write_text(yaml.safe_dump({"proxy": {"model_host": deployments}}))
    ran = sbproxy("validate", str(path))
    assert ran.code != 0
    assert "tiny-model" in ran.err
