# SPDX-License-Identifier: MIT
"""tests/data/families/NAME.json: config and tensor shapes of the tiny stock model of every family, as the installed
transformers saves them. Tests in C++ fill them with random numbers.

  make_families.py            writes them
  make_families.py --check    fails when a file is not what would be written
"""

import argparse
import json
import pathlib
import sys
import tempfile

from safetensors import safe_open

import stock
import zoo_dense
import zoo_layer_norm
import zoo_moe
import zoo_other

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "data" / "families"
ANIMALS = zoo_dense.CASES + zoo_moe.CASES + zoo_layer_norm.CASES + zoo_other.CASES


def describe(animal):
    """What a file holds."""
    with tempfile.TemporaryDirectory() as folder:
        with stock.all_in_double():
            animal.build().save_pretrained(folder)
        config = json.loads((pathlib.Path(folder) / "config.json").read_text())
        config.pop("transformers_version", None)
        shapes = {}
        for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
            with safe_open(path, "pt") as file:
                for name in file.keys():
                    shapes[name] = list(file.get_slice(name).get_shape())
    return {
        "config": config,
        "dense": animal.dense,
        "heads": animal.heads,
        "moves": animal.moves,
        "one_plus": animal.one_plus,
        "signs": animal.signs,
        "tensors": shapes,
    }


def text(description):
    """One line per part, so that a difference can be read."""
    parts = [f"{json.dumps(k)}: {json.dumps(v, sort_keys=True)}" for k, v in sorted(description.items())]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def check():
    """Names of files that are not what the installed transformers makes."""
    wanted = {f"{animal.name}.json": text(describe(animal)) for animal in ANIMALS}
    found = {path.name: path.read_text() for path in FOLDER.glob("*.json") if path.name != "oracle.json"}
    return sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))


def compare():
    """For the oracle's report."""
    different = check()
    return not different, ", ".join(different) or "all as committed"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        different = check()
        print("\n".join(different) or "all as committed")
        return 1 if different else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for animal in ANIMALS:
        (FOLDER / f"{animal.name}.json").write_text(text(describe(animal)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
