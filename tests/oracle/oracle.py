# SPDX-License-Identifier: MIT
"""The whole oracle: golden fixtures, tiny checkpoints, the zoo of all families, SmolLM2-135M. Ends with a count."""

import argparse
import pathlib
import sys
import time

import stock  # first: it quietens transformers
import make_families
import make_golden
import mxfp4
import results_page
import smollm2
import tiny
import zoo
from program import Program, Results


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--only", choices=["golden", "tiny", "zoo", "smollm2"])
    parser.add_argument("--names", nargs="*", help="with --only zoo: which families")
    parser.add_argument("--write-results", action="store_true", help="put the measured tables in docs/results.md")
    options = parser.parse_args()
    program, results, work = Program(options.build), Results(), options.build / "oracle"
    start = time.monotonic()
    families, animals, rows = [], [], []
    if options.only in (None, "golden"):
        for case in make_golden.CASES:
            results.case(f"golden {case.name}", make_golden.check, case)
    if options.only in (None, "tiny"):
        families = tiny.run(program, work / "tiny", results)
    if options.only in (None, "zoo"):
        results.case("fixtures of families", make_families.compare)
        animals = zoo.run(program, work / "zoo", results, options.names)
        results.case("gpt_oss stored as MXFP4", mxfp4.case, program, work)
    if options.only in (None, "smollm2"):
        rows = smollm2.run(program, work / "smollm2", results)
    if animals:
        zoo.write_summary(animals, work / "oracle.json")
        if options.write_results and results.failed == 0 and not options.names:
            zoo.write_summary(animals, make_families.FOLDER / "oracle.json")
    if families and rows:
        page = results_page.write(families, rows)
        (work / "results.md").write_text(page)
        if options.write_results and results.failed == 0:
            results_page.PAGE.write_text(page)
    print(f"{time.monotonic() - start:.0f} seconds")
    return results.finish()


if __name__ == "__main__":
    sys.exit(main())
