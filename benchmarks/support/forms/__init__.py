"""Forms of ONNX's operators: attributes, sizes, types, opsets and extreme numbers."""

from benchmarks.support.forms import elementwise, images, language, products, reducing, shaping
from benchmarks.support.forms.form import Form

_FAMILIES = (
    elementwise.unary,
    elementwise.binary,
    elementwise.special_constants,
    elementwise.whole_numbers,
    elementwise.powers,
    elementwise.casts,
    reducing.reductions,
    reducing.arguments,
    reducing.softmaxes,
    reducing.normalizations,
    images.pools,
    images.pools_of_types,
    images.convolutions,
    images.resizes,
    images.regions,
    language.rotary,
    language.norms,
    language.group_query,
    language.whole_attention,
    language.multi_head,
    language.packed_weights,
    products.products,
    products.quantized,
    products.recurrent,
    shaping.shapes,
    shaping.parts,
    shaping.repeats,
    shaping.made,
    shaping.slices,
    shaping.pads,
    shaping.lookups,
    shaping.scatters,
    shaping.chosen,
)


def all_forms() -> dict[str, Form]:
    """By name."""
    return {form.name: form for family in _FAMILIES for form in family()}
