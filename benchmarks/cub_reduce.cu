// CUB's sums, as a peer of xgemm's: what python/xgemm/bench/cub.py calls.
#include <cuda_fp16.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <cstdint>
#include <cub/cub.cuh>

namespace {

struct Offset {  // of a row's first element
  int64_t length;
  __host__ __device__ int64_t operator()(int64_t row) const { return row * length; }
};

template <typename T>
cudaError_t sum(const void* in, void* out, int64_t rows, int64_t length, void* temporary,
                size_t* bytes, cudaStream_t stream) {
  const T* x = static_cast<const T*>(in);
  T* y = static_cast<T*>(out);
  if (rows == 1) return cub::DeviceReduce::Sum(temporary, *bytes, x, y, length, stream);
  const auto starts =
      thrust::make_transform_iterator(thrust::counting_iterator<int64_t>(0), Offset{length});
  return cub::DeviceSegmentedReduce::Sum(temporary, *bytes, x, y, rows, starts, starts + 1, stream);
}

}  // namespace

// Of each row of a dense [rows, length] matrix of fp16 or fp32. Without `temporary` it only says
// how many bytes of it there must be. Returns a cudaError_t.
extern "C" int cub_sum(int half, const void* in, void* out, int64_t rows, int64_t length,
                       void* temporary, size_t* bytes, void* stream) {
  return (half ? sum<__half> : sum<float>)(in, out, rows, length, temporary, bytes,
                                           static_cast<cudaStream_t>(stream));
}
