#!/usr/bin/env python3
"""Writes down the parts of vLLM's interface that xgemm.vllm uses, read from a wheel's sources.

    python3 tools/vllm_interface.py vllm-0.33.0-....whl > tests/vllm_interface.json
    python3 tools/vllm_interface.py --compare tests/vllm_interface.json vllm-0.34.0-....whl

Nothing is imported from the wheel. --compare prints what differs from a file made before, and ends
with 1 if anything does.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import zipfile
from collections.abc import Callable

KERNELS = "vllm/model_executor/kernels/linear"
LAYERS = "vllm/model_executor/layers"
# File -> functions, classes' methods, and "Class" alone: its fields, or its members for an enum.
USED = {
    f"{KERNELS}/mixed_precision/MPLinearKernel.py": [
        "MPLinearLayerConfig",
        "MPLinearKernel.__init__",
        "MPLinearKernel.get_min_capability",
        "MPLinearKernel.can_implement",
        "MPLinearKernel.process_weights_after_loading",
        "MPLinearKernel.apply_weights",
        "MPLinearKernel._transform_param",
    ],
    "vllm/model_executor/parameter.py": [
        "permute_param_layout_",
        "BasevLLMParameter.__init__",
        "PackedvLLMParameter.__init__",
        "RowvLLMParameter.load_row_parallel_weight",
    ],
    f"{LAYERS}/linear.py": [
        "LinearMethodBase.create_weights",
        "LinearMethodBase.apply",
        "register_weight_loader_v2_supported_method",
    ],
    f"{LAYERS}/quantization/__init__.py": ["register_quantization_config"],
    f"{LAYERS}/quantization/base_config.py": [
        "QuantizationConfig.__init__",
        "QuantizationConfig.get_name",
        "QuantizationConfig.get_supported_act_dtypes",
        "QuantizationConfig.get_min_capability",
        "QuantizationConfig.get_config_filenames",
        "QuantizationConfig.from_config",
        "QuantizationConfig.get_quant_method",
        "QuantizationConfig.override_quantization_method",
        "QuantizationConfig.maybe_update_config",
        "QuantizationConfig.apply_vllm_mapper",
        "QuantizationConfig.get_checkpoint_weight_mapper",
        "QuantizeMethodBase.process_weights_after_loading",
    ],
    "vllm/model_executor/custom_op.py": ["PluggableLayer.register_oot"],
    f"{LAYERS}/fused_moe/activation.py": ["MoEActivation", "apply_moe_activation"],
    f"{LAYERS}/fused_moe/config.py": ["FusedMoEConfig", "FusedMoEParallelConfig"],
    f"{LAYERS}/fused_moe/fused_moe_method_base.py": [
        "FusedMoEMethodBase.__init__",
        "FusedMoEMethodBase.create_weights",
        "FusedMoEMethodBase.apply",
        "FusedMoEMethodBase.get_fused_moe_quant_config",
        "FusedMoEMethodBase.maybe_roundup_sizes",
    ],
    f"{LAYERS}/fused_moe/routed_experts.py": [
        "RoutedExperts._get_quant_method",
        "RoutedExperts.load_weights",
    ],
    "vllm/model_executor/models/utils.py": ["WeightsMapper"],
    "vllm/platforms/interface.py": ["PlatformEnum"],
    "vllm/transformers_utils/config.py": ["get_safetensors_params_metadata"],
}
# File -> the method of a format's experts; its parameters are what create_weights registers.
_COMPRESSED = f"{LAYERS}/quantization/compressed_tensors/compressed_tensors_moe"
EXPERTS = {
    f"{_COMPRESSED}/compressed_tensors_moe_wna16.py": "CompressedTensorsWNA16MoEMethod",
    f"{_COMPRESSED}/compressed_tensors_moe_w4a4_mxfp4.py": "CompressedTensorsW4A4Mxfp4MoEMethod",
    f"{LAYERS}/quantization/mxfp4.py": "GptOssMxfp4MoEMethod",
    f"{LAYERS}/quantization/auto_gptq.py": "AutoGPTQMoEMethod",
    f"{LAYERS}/quantization/auto_awq.py": "AutoAWQMoEMethod",
}


def read(wheel: str) -> dict[str, object]:
    """The version, each used name's signature or fields, and the int4 kernels in order."""
    with zipfile.ZipFile(wheel) as opened:
        trees = {file: ast.parse(opened.read(file)) for file in USED}
        kernels = ast.parse(opened.read(f"{KERNELS}/__init__.py"))
        experts = {name: _registered(opened.read(file), name) for file, name in EXPERTS.items()}
    names = {name: describe(trees[file], name) for file, used in USED.items() for name in used}
    version = wheel.rsplit("/", 1)[-1].split("-")[1]
    return {
        "vllm": version, "names": names, "cuda_kernels": _cuda_kernels(kernels),
        "experts": experts,
    }  # fmt: skip


def describe(tree: ast.Module, name: str) -> list[str] | None:
    """Arguments of a function, fields of a class; None where there is no such name any more."""
    body: list[ast.stmt] = tree.body
    found: ast.stmt | None = None
    for part in name.split("."):
        definitions = [n for n in body if isinstance(n, ast.ClassDef | ast.FunctionDef)]
        found = next((n for n in definitions if n.name == part), None)
        if found is None:
            return None
        body = found.body
    if isinstance(found, ast.ClassDef):
        fields = [n.target.id for n in body if isinstance(n, ast.AnnAssign)]  # type: ignore[union-attr]
        return fields or [n.targets[0].id for n in body if isinstance(n, ast.Assign)]  # type: ignore[attr-defined]
    assert isinstance(found, ast.FunctionDef)
    return _arguments(found.args)


def _arguments(args: ast.arguments) -> list[str]:
    positional = [a.arg for a in (*args.posonlyargs, *args.args)]
    plain = len(positional) - len(args.defaults)
    written = [
        name if i < plain else f"{name}={ast.unparse(args.defaults[i - plain])}"
        for i, name in enumerate(positional)
    ]
    if args.vararg:
        written.append(f"*{args.vararg.arg}")
    written += [
        a.arg if d is None else f"{a.arg}={ast.unparse(d)}"
        for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True)
    ]
    return [*written, f"**{args.kwarg.arg}"] if args.kwarg else written


def _cuda_kernels(tree: ast.Module) -> list[str]:
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "_POSSIBLE_KERNELS":
            assert isinstance(node.value, ast.Dict)
            for key, value in zip(node.value.keys, node.value.values, strict=True):
                if key is not None and ast.unparse(key) == "PlatformEnum.CUDA":
                    assert isinstance(value, ast.List)
                    return [ast.unparse(element) for element in value.elts]
    raise ValueError("vllm_interface: no _POSSIBLE_KERNELS[PlatformEnum.CUDA]")


def _registered(source: bytes, name: str) -> list[str]:
    """The parameters that the class's create_weights gives a layer, sorted."""
    made = [
        node
        for one in ast.parse(source).body
        if isinstance(one, ast.ClassDef) and one.name == name
        for node in one.body
        if isinstance(node, ast.FunctionDef) and node.name == "create_weights"
    ]
    return sorted(
        str(ast.literal_eval(call.args[0]))
        for function in made
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(".register_parameter")
    )


def differences(old: dict, new: dict) -> list[str]:
    found = []
    for name in sorted(old["names"].keys() | new["names"].keys()):
        before, after = old["names"].get(name), new["names"].get(name)
        if before != after:
            found.append(f"{name}: {before} -> {after}")
    for key in ("cuda_kernels", "experts"):
        if old.get(key) != new.get(key):
            found.append(f"{key}: {old[key]} -> {new[key]}")
    return found


def main(description: str = __doc__, read: Callable[[str], dict[str, object]] = read) -> None:
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("wheel")
    parser.add_argument("--compare", metavar="FILE")
    options = parser.parse_args()
    found = read(options.wheel)
    if options.compare is None:
        print(json.dumps(found, indent=1))
        return
    with open(options.compare) as stream:
        changed = differences(json.load(stream), found)
    print("\n".join(changed) or "no difference")
    sys.exit(bool(changed))


if __name__ == "__main__":
    main()
