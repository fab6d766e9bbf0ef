"""The two headers of NVIDIA's C++ library that all of TVM's code for NVRTC includes, as small as that code needs them.

The real ones are most of what compiling a kernel takes (docs/decisions/0016-cuda-builds.md). Code that includes more of
that library gets the real ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_INCLUDE = re.compile(r"^\s*#\s*include\s*<(cuda/[^>]+)>", re.MULTILINE)

_CSTDINT = """\
#pragma once
namespace cuda { namespace std {
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
} }
"""
_TYPE_TRAITS = """\
#pragma once
namespace cuda { namespace std {
struct true_type { static constexpr bool value = true; };
struct false_type { static constexpr bool value = false; };
template <class A, class B> struct is_same : false_type {};
template <class A> struct is_same<A, A> : true_type {};
template <class A, class B> inline constexpr bool is_same_v = is_same<A, B>::value;
template <class T> struct remove_cv { typedef T type; };
template <class T> struct remove_cv<const T> { typedef T type; };
template <class T> struct remove_cv<volatile T> { typedef T type; };
template <class T> struct remove_cv<const volatile T> { typedef T type; };
template <class T> struct signed_number : false_type {};
template <class T> struct unsigned_integer : false_type {};
template <class T> struct real_number : false_type {};
template <> struct signed_number<signed char> : true_type {};
template <> struct signed_number<char> : true_type {};
template <> struct signed_number<short> : true_type {};
template <> struct signed_number<int> : true_type {};
template <> struct signed_number<long> : true_type {};
template <> struct signed_number<long long> : true_type {};
template <> struct unsigned_integer<bool> : true_type {};
template <> struct unsigned_integer<unsigned char> : true_type {};
template <> struct unsigned_integer<unsigned short> : true_type {};
template <> struct unsigned_integer<unsigned int> : true_type {};
template <> struct unsigned_integer<unsigned long> : true_type {};
template <> struct unsigned_integer<unsigned long long> : true_type {};
template <> struct real_number<float> : true_type {};
template <> struct real_number<double> : true_type {};
template <class T> struct is_floating_point : real_number<typename remove_cv<T>::type> {};
template <class T> struct is_unsigned : unsigned_integer<typename remove_cv<T>::type> {};
template <class T> struct is_signed {
  typedef typename remove_cv<T>::type bare;
  static constexpr bool value = signed_number<bare>::value || real_number<bare>::value;
};
template <class T> struct is_integral {
  typedef typename remove_cv<T>::type bare;
  static constexpr bool value = signed_number<bare>::value || unsigned_integer<bare>::value;
};
template <bool, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { typedef T type; };
template <bool, class T, class F> struct conditional { typedef T type; };
template <class T, class F> struct conditional<false, T, F> { typedef F type; };
} }
"""
_SMALL = {"cuda/std/cstdint": _CSTDINT, "cuda/std/type_traits": _TYPE_TRAITS}


def small_headers(source: str) -> Mapping[str, str]:
    """Headers by name to compile `source` with; none when it includes more of the library than they stand for."""
    return _SMALL if set(_INCLUDE.findall(source)) <= set(_SMALL) else {}
