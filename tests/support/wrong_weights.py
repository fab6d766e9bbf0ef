"""Bundles in which one variant computes with a wrong weight, as a fault of a machine or of a kernel would."""

from pathlib import Path

import numpy as np

from fractune_core.files.bundles import RECORDS, WEIGHTS, Bundle, object_entry, write_bundle
from fractune_core.files.manifests import ALIGNMENT_BYTES


def with_other_weight(source: Path, path: Path, variant: str, factor: float) -> Path:
    """The bundle, in which `factor` times its largest weight is that of this variant."""
    bundle = Bundle(source)
    manifest, weights = bundle.manifest, bundle.read(WEIGHTS)
    places = next(each["weights"] for each in bundle.variants if each["name"] == variant)
    place = max(places, key=lambda at: int(manifest["weights"][at]["size"]))
    described = manifest["weights"][place]
    begin, end = described["offset"], described["offset"] + described["size"]
    numbers = np.frombuffer(weights[begin:end], described["dtype"]) * np.asarray(factor, described["dtype"])
    weights += bytes(-len(weights) % ALIGNMENT_BYTES)
    other = {**described, "offset": len(weights)}
    moved = [len(manifest["weights"]) if at == place else at for at in places]
    changed = [{**each, "weights": moved} if each["name"] == variant else each for each in bundle.variants]
    entries = {RECORDS: bundle.read(RECORDS), WEIGHTS: weights + numbers.tobytes()}
    for number, each in enumerate(bundle.variants):
        code = zip(each["objects"], bundle.objects(each["name"]), strict=True)
        entries |= {object_entry(number, name): content for name, content in code}
    with path.open("wb") as file:
        write_bundle(file, {**manifest, "weights": [*manifest["weights"], other], "variants": changed}, entries)
    bundle.close()
    return path
