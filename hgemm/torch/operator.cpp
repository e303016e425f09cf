// torch.ops.hgemm.matmul and launches of expressions without Python: finds the launch of a geometry in a cache, writes the
// addresses, and launches.
//
// Python decides everything once per geometry (hgemm/torch/native.py): the kernel, the grid, the packed problem, the tensor maps.
// A call that is not in the cache asks it. Nothing here knows a kernel, the layout of a Problem, or cuda.h.
#include <Python.h>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/leaky_relu_backward.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/threshold_backward.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace {

using at::Tensor;
using std::optional;

// ==== The CUDA driver, by the addresses that Python passes ====
// Types and values as in cuda.h of CUDA 12 and 13.

struct LaunchConfig {  // CUlaunchConfig
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, smem_bytes;
  void* stream;
  void* attributes;
  unsigned attribute_count;
};

struct EdgeData {  // CUgraphEdgeData
  unsigned char from_port, to_port, type, reserved[5];
};

struct KernelNode {  // CUDA_KERNEL_NODE_PARAMS_v2
  void* function;
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, smem_bytes;
  void **parameters, **extra, *kernel, *context;
};

constexpr int node_type_kernel = 0;           // CUgraphNodeType
constexpr unsigned char port_programmatic = 1;  // CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC; 0 is the default port

struct Driver {
  int (*launch)(LaunchConfig const*, void* function, void** parameters, void** extra);
  int (*encode)(void* map, int type, uint32_t rank, void* address, uint64_t const* extents, uint64_t const* strides,
                uint32_t const* box, uint32_t const* steps, int interleave, int swizzle, int promotion, int fill);
  int (*zero)(uint64_t address, unsigned char value, size_t bytes, void* stream);
  int (*context)(void** context);
  int (*push)(void* context);
  int (*pop)(void** context);
  int (*capturing)(void* stream, int* status);
  int (*error)(int status, char const** text);
  // Null in drivers before CUDA 12.3.
  int (*capture_info)(void* stream, int* status, uint64_t* id, void** graph, void* const** nodes, EdgeData const** edges,
                      size_t* count);
  int (*node_type)(void* node, int* type);
  int (*kernel_node)(void* node, KernelNode* params);
  int (*stream)(int32_t device, void** stream);  // aoti_torch_get_current_cuda_stream of libtorch_cuda
} driver;

// ==== Errors, as Python's ====

PyObject *problem_error = nullptr, *device_error = nullptr;

// Throws the Python exception that is set, in a form that passes through C++.
[[noreturn]] void raise() {
  python_error error;
  error.persist();
  throw std::move(error);
}

// Streams are not used: with a compiler that links libstdc++ statically, their locale mixes with that of torch's libstdc++.
template <class Word>
std::string text(Word const& word) {
  if constexpr (std::is_arithmetic_v<Word>)
    return std::to_string(word);
  else if constexpr (std::is_same_v<Word, at::Device>)
    return word.str();
  else
    return std::string(word);
}

template <class... Words>
std::string joined(Words const&... words) {
  return (std::string() + ... + text(words));
}

template <class... Words>
[[noreturn]] void raise(PyObject* type, Words const&... words) {
  py::gil_scoped_acquire gil;
  PyErr_SetString(type, joined(words...).c_str());
  raise();
}

void checked(int status, std::string const& doing) {
  if (!status) return;
  char const* text = nullptr;
  driver.error(status, &text);
  raise(device_error, "cannot ", doing, ": ", text ? text : "unknown error", " (CUresult ", status, ")");
}

// ==== One launch, as Python describes it ====

enum { A, B, C, D, BIAS, WORKSPACE, OPERANDS };

constexpr int map_bytes = 128, max_maps = 7, rank = 3;
constexpr size_t max_problem_bytes = 512;

struct MapGeometry {
  bool used = false;
  int operand = 0;
  int type = 0, interleave = 0, swizzle = 0, promotion = 0, fill = 0;
  uint64_t extents[rank] = {}, strides[rank - 1] = {}, element_bytes = 0;
  uint32_t box[rank] = {}, steps[rank] = {1, 1, 1};
};

struct Launch {
  uint64_t number = 0;  // unique in this process, above 0
  bool empty = false;   // D has no elements
  std::string symbol;
  void *function = nullptr, *context = nullptr;
  LaunchConfig config = {};
  std::string attributes;  // CUlaunchAttribute, one after another
  std::string problem;     // packed, with the addresses at `offsets`
  size_t offsets[OPERANDS] = {};
  std::vector<size_t> more_offsets;  // of the inputs and further results of an expression
  int maps = 0;
  MapGeometry map[max_maps];
  uint64_t span_bytes[OPERANDS] = {};
  bool c_may_be_d = false;
  uint64_t workspace_bytes = 0, counter_bytes = 0;
  bool zero_counters = false;
};

// ==== The cache: what identifies a geometry ====

struct Operand {
  int64_t address = 0;
  int64_t type = -1;  // at::ScalarType, -1 if the operand is missing
  int64_t dims = 0, sizes[3] = {}, strides[3] = {};
};

struct Call {
  Operand operand[5];  // A, B, C, D, BIAS
  double alpha = 1, beta = 0;
  int64_t device = 0, activation = 0;
  bool tf32 = false;       // float32 may be multiplied as tf32
  bool invariant = false;  // the bits of a row must not depend on the number of rows
};

bool as_tf32(Tensor const& a) {
  return a.scalar_type() == at::kFloat &&
         at::globalContext().float32MatmulPrecision() != at::Float32MatmulPrecision::HIGHEST;
}

struct Key {
  static constexpr int words = 5 * 7 + 4;
  std::array<int64_t, words> word;

  explicit Key(Call const& call) {
    int at = 0, low = 0;
    for (int i = 0; i < 5; ++i) {
      Operand const& x = call.operand[i];
      word[at++] = x.type << 8 | x.dims;
      for (int axis = 0; axis < 3; ++axis) word[at++] = x.sizes[axis];
      for (int axis = 0; axis < 3; ++axis) word[at++] = x.strides[axis];
      low = low << 5 | int(x.address & 31);  // kernels require at most 8 elements of 4 bytes
    }
    word[at++] = low;
    word[at++] = call.device << 16 | call.invariant << 9 | call.tf32 << 8 | call.activation;
    std::memcpy(&word[at++], &call.alpha, 8);
    std::memcpy(&word[at++], &call.beta, 8);
  }
  bool operator==(Key const& other) const { return word == other.word; }
};

struct Hash {
  template <class Words>
  static size_t of(Words const& words) {
    uint64_t hash = 0;
    for (int64_t word : words) {
      hash = (hash ^ uint64_t(word)) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 32;
    }
    return hash;
  }
  size_t operator()(Key const& key) const { return of(key.word); }
  size_t operator()(std::vector<int64_t> const& words) const { return of(words); }
};

constexpr size_t max_launches = 4096;

std::mutex mutex;  // never held while the GIL is awaited
std::unordered_map<Key, std::shared_ptr<Launch const>, Hash> launches;
std::unordered_map<std::vector<int64_t>, std::shared_ptr<Launch const>, Hash> expressions;  // launches of them
std::map<std::tuple<int64_t, void*, bool>, int64_t> workspaces;  // by device, stream, and whether a graph is captured
std::unordered_set<void*> programmatic;                          // kernels that let the next one start early
uint64_t generation = 0;                                         // counts uses of another library

// ==== Python's part ====

PyObject *describe = nullptr, *describe_expression = nullptr, *allocate = nullptr, *record = nullptr, *activations = nullptr;
c10::DispatchKey backend = c10::DispatchKey::CUDA, autocast = c10::DispatchKey::AutocastCUDA;
c10::DeviceType device_type = c10::DeviceType::CUDA;

py::object owned(PyObject* object) {
  if (!object) raise();
  return py::reinterpret_steal<py::object>(object);
}

py::tuple described(Operand const& x) {
  if (x.type < 0) return py::make_tuple();
  py::tuple sizes(x.dims), strides(x.dims);
  for (int axis = 0; axis < x.dims; ++axis) {
    sizes[axis] = x.sizes[axis];
    strides[axis] = x.strides[axis];
  }
  return py::make_tuple(x.address, sizes, strides, c10::toString(c10::ScalarType(x.type)));
}

uint64_t number(py::handle value) { return value.cast<uint64_t>(); }

Launch read(py::dict const& given) {
  static std::atomic<uint64_t> read_before{0};
  Launch launch;
  launch.number = ++read_before;
  launch.empty = given["empty"].cast<bool>();
  if (launch.empty) return launch;
  launch.symbol = given["symbol"].cast<std::string>();
  launch.function = reinterpret_cast<void*>(number(given["function"]));
  launch.context = reinterpret_cast<void*>(number(given["context"]));
  launch.config.grid_x = unsigned(number(given["grid"]));
  launch.config.block_x = unsigned(number(given["threads"]));
  launch.config.grid_y = launch.config.grid_z = launch.config.block_y = launch.config.block_z = 1;
  launch.config.smem_bytes = unsigned(number(given["smem_bytes"]));
  launch.attributes = given["attributes"].cast<std::string>();
  launch.config.attribute_count = unsigned(number(given["attribute_count"]));
  launch.problem = given["problem"].cast<std::string>();
  TORCH_CHECK(launch.problem.size() <= max_problem_bytes, joined("a packed problem has ", launch.problem.size(), " B"));
  py::sequence offsets = given["offsets"], spans = given["span_bytes"];
  for (int i = 0; i < OPERANDS; ++i) {
    launch.offsets[i] = number(offsets[i]);
    TORCH_CHECK(launch.offsets[i] + 8 <= launch.problem.size(), "an address lies outside of the packed problem");
    launch.span_bytes[i] = number(spans[i]);
  }
  launch.more_offsets = given["more_offsets"].cast<std::vector<size_t>>();
  for (size_t offset : launch.more_offsets)
    TORCH_CHECK(offset + 8 <= launch.problem.size(), "an address lies outside of the packed problem");
  launch.c_may_be_d = given["c_may_be_d"].cast<bool>();
  launch.workspace_bytes = number(given["workspace_bytes"]);
  launch.counter_bytes = number(given["counter_bytes"]);
  launch.zero_counters = given["zero_counters"].cast<bool>();
  py::sequence geometries = given["maps"];
  launch.maps = int(py::len(geometries));
  TORCH_CHECK(launch.maps <= max_maps, joined("a launch has ", launch.maps, " tensor maps"));
  for (int i = 0; i < launch.maps; ++i) {
    auto [operand, geometry] = py::object(geometries[i]).cast<std::tuple<int, py::object>>();
    if (geometry.is_none()) continue;
    MapGeometry& map = launch.map[i];
    map.operand = operand;
    auto [type, extents, strides, box, step, modes] =
        geometry.cast<std::tuple<int, std::array<uint64_t, 3>, std::array<uint64_t, 2>, std::array<uint32_t, 3>, uint32_t,
                                 std::array<int, 4>>>();
    constexpr int float16 = 6, bfloat16 = 9;  // of CUtensorMapDataType; the others have four bytes
    map.used = true, map.type = type, map.steps[1] = step;
    map.element_bytes = type == float16 || type == bfloat16 ? 2 : 4;
    std::copy(extents.begin(), extents.end(), map.extents);
    std::copy(strides.begin(), strides.end(), map.strides);
    std::copy(box.begin(), box.end(), map.box);
    map.interleave = modes[0], map.swizzle = modes[1], map.promotion = modes[2], map.fill = modes[3];
  }
  return launch;
}

// Returns the launch of a geometry. Asks Python for a new one by a function and its arguments, and keeps it. Raises what
// Python raises.
template <class Launches, class Arguments>
std::shared_ptr<Launch const> launch_of(Launches& launches, typename Launches::key_type const& key, PyObject* question,
                                        Arguments const& arguments) {
  {
    std::lock_guard<std::mutex> lock(mutex);
    auto place = launches.find(key);
    if (place != launches.end()) return place->second;
  }
  std::shared_ptr<Launch const> made;
  uint64_t started;
  bool keep, early;
  {
    py::gil_scoped_acquire gil;
    {
      std::lock_guard<std::mutex> lock(mutex);
      started = generation;
    }
    py::object given = owned(PyObject_CallObject(question, arguments().ptr()));
    py::dict const description = py::reinterpret_borrow<py::dict>(given);
    made = std::make_shared<Launch const>(read(description));
    keep = description["keep"].cast<bool>();
    early = !made->empty && description["programmatic"].cast<bool>();
  }
  std::lock_guard<std::mutex> lock(mutex);
  if (early) programmatic.insert(made->function);
  if (keep && generation == started) {
    if (launches.size() >= max_launches) launches.clear();
    launches.emplace(key, made);
  }
  return made;
}

// Returns the workspace of a stream. Graphs have one of their own, so that eager calls do not share it.
int64_t workspace_of(int64_t device, void* stream) {
  int capture = 0;
  if (driver.capturing(stream, &capture)) capture = 0;
  auto key = std::make_tuple(device, stream, capture != 0);
  {
    std::lock_guard<std::mutex> lock(mutex);
    auto found = workspaces.find(key);
    if (found != workspaces.end()) return found->second;
  }
  int64_t address;
  {
    py::gil_scoped_acquire gil;
    py::object arguments = py::make_tuple(device, reinterpret_cast<uint64_t>(stream), capture != 0);
    address = owned(PyObject_CallObject(allocate, arguments.ptr())).cast<int64_t>();
  }
  std::lock_guard<std::mutex> lock(mutex);
  return workspaces.emplace(key, address).first->second;
}

// Returns whether the next launch on a stream should be programmatic, as Device.overlap_pays of hgemm/device.py.
bool overlap_pays(void* stream) {
  int captured = 0, type = 0;
  uint64_t id;
  void *graph, *const* nodes;
  EdgeData const* edges = nullptr;
  size_t count = 0;
  KernelNode node = {};
  if (!stream) return true;  // no graph captures the legacy default stream
  if (!driver.capture_info || !driver.node_type || !driver.kernel_node) return true;
  if (driver.capture_info(stream, &captured, &id, &graph, &nodes, &edges, &count) || !captured) return true;
  if (count != 1 || (edges && edges[0].from_port > port_programmatic)) return false;
  if (driver.node_type(nodes[0], &type) || type != node_type_kernel || driver.kernel_node(nodes[0], &node)) return false;
  std::lock_guard<std::mutex> lock(mutex);
  return programmatic.count(node.function) > 0;
}

// ==== A call ====

bool overlap(int64_t one, uint64_t one_bytes, int64_t other, uint64_t other_bytes) {
  return one_bytes && other_bytes && one < other + int64_t(other_bytes) && other < one + int64_t(one_bytes);
}

// Encodes a map at an address. Returns the driver's status.
int encode(void* map, MapGeometry of, void* address) {
  auto const encoded = [&] {
    return driver.encode(map, of.type, rank, address, of.extents, of.strides, of.box, of.steps, of.interleave, of.swizzle,
                         of.promotion, of.fill);
  };
  if (!encoded()) return 0;
  // NVIDIA documents no map whose rows overlap, so a driver may reject it. This one is right, too, but may be slower to load.
  of.box[0] /= of.steps[1], of.extents[0] /= of.steps[1], of.steps[1] = 1;
  if (of.extents[1] > 1) of.extents[0] = std::min(of.extents[0], of.strides[0] / of.element_bytes);
  return encoded();
}

// A map of a launch, by its place, at an address.
struct EncodedMap {
  alignas(64) char map[map_bytes];  // as the driver requires
  uint64_t launch = 0;              // Launch::number, 0 if there is no map
  int64_t place = 0, address = 0;
};

// Copies a map of a launch from this thread's cache, which encodes it if it is new there. Returns the driver's status.
int copy_map(void* map, Launch const& launch, int place, int64_t address) {
  thread_local std::array<EncodedMap, 2048> cache;  // eager models reuse the addresses of weights and of most results
  EncodedMap& found = cache[Hash::of(std::array<int64_t, 3>{int64_t(launch.number), place, address}) % cache.size()];
  if (found.launch != launch.number || found.place != place || found.address != address) {
    found.launch = 0;
    if (int const status = encode(found.map, launch.map[place], reinterpret_cast<void*>(address))) return status;
    found.launch = launch.number, found.place = place, found.address = address;
  }
  std::memcpy(map, found.map, map_bytes);
  return 0;
}

// Launches with the addresses of the operands, and of those that an expression has besides.
void launch_at(Launch const& launch, int64_t (&address)[OPERANDS], at::ArrayRef<int64_t> more, int64_t device, void* stream) {
  if (launch.workspace_bytes) address[WORKSPACE] = workspace_of(device, stream);
  alignas(16) char problem[max_problem_bytes];
  std::memcpy(problem, launch.problem.data(), launch.problem.size());
  for (int i = 0; i < OPERANDS; ++i) std::memcpy(problem + launch.offsets[i], &address[i], 8);
  for (size_t i = 0; i < more.size(); ++i) std::memcpy(problem + launch.more_offsets[i], &more[i], 8);

  alignas(64) char map[max_maps * map_bytes] = {};
  void* parameters[2] = {problem, map};
  LaunchConfig config = launch.config;
  config.stream = stream;
  config.attributes = const_cast<char*>(launch.attributes.data());

  void* context = nullptr;
  bool const elsewhere = driver.context(&context) || context != launch.context;
  if (elsewhere) checked(driver.push(launch.context), "enter the context");
  if (config.attribute_count && !overlap_pays(stream)) config.attribute_count = 0;
  int status = 0;
  for (int i = 0; i < launch.maps && !status; ++i) {
    MapGeometry const& of = launch.map[i];
    if (of.used) status = copy_map(map + i * map_bytes, launch, i, address[of.operand]);
  }
  if (!status && launch.zero_counters)
    status = driver.zero(uint64_t(address[WORKSPACE]), 0, launch.counter_bytes, stream);
  if (!status) status = driver.launch(&config, launch.function, parameters, nullptr);
  if (elsewhere) driver.pop(&context);
  checked(status, "launch " + launch.symbol);
}

// Launches a call. Returns false, and launches nothing, if D may overlap an operand.
bool run(Call const& call, Key const& key, bool fresh_output) {
  void* stream = nullptr;
  checked(driver.stream(int32_t(call.device), &stream), "find the current stream");
  std::shared_ptr<Launch const> const found = launch_of(launches, key, describe, [&] {
    py::tuple operands(5);
    for (int i = 0; i < 5; ++i) operands[i] = described(call.operand[i]);
    return py::make_tuple(operands, call.device, call.alpha, call.beta, call.activation, call.tf32, call.invariant,
                          reinterpret_cast<uint64_t>(stream));
  });
  Launch const& launch = *found;
  if (launch.empty) return true;

  int64_t address[OPERANDS] = {};
  for (int i = 0; i < WORKSPACE; ++i) address[i] = call.operand[i].address;
  for (int i = 0; !fresh_output && i < WORKSPACE; ++i) {
    bool const in_place = i == C && address[C] == address[D] && launch.c_may_be_d;
    if (i != D && !in_place && overlap(address[D], launch.span_bytes[D], address[i], launch.span_bytes[i]))
      return false;
  }
  launch_at(launch, address, {}, call.device, stream);
  return true;
}

Operand operand_of(Tensor const& x) {
  Operand operand;
  operand.address = reinterpret_cast<int64_t>(x.const_data_ptr());
  operand.type = int64_t(x.scalar_type());
  operand.dims = x.dim();
  if (operand.dims > 3) raise(problem_error, "an operand has ", operand.dims, " axes: pass 2, or 3 with a batch");
  for (int axis = 0; axis < operand.dims; ++axis) {
    operand.sizes[axis] = x.size(axis);
    operand.strides[axis] = x.stride(axis);
  }
  return operand;
}

// Returns whether one of two axes is contiguous, and the steps along the other one do not overlap, as those of `expand` do.
bool is_readable(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride) {
  return (column_stride == 1 && (rows <= 1 || row_stride >= columns)) ||
         (row_stride == 1 && (columns <= 1 || column_stride >= rows));
}

Tensor readable(Tensor const& x) {
  bool const plain = x.dim() < 2 || is_readable(x.size(-2), x.size(-1), x.stride(-2), x.stride(-1));
  return plain ? x : x.contiguous();
}

Tensor matmul(Tensor const& a_given, Tensor const& b_given, optional<Tensor> const& bias, optional<Tensor> const& c,
              double alpha, double beta, int64_t activation, bool invariant, Tensor const* out = nullptr) {
  Tensor const a = readable(a_given), b = readable(b_given);
  if ((a.dim() != 2 && a.dim() != 3) || (b.dim() != 2 && b.dim() != 3))
    raise(problem_error, "A has ", a.dim(), " axes and B ", b.dim(), ": pass 2, or 3 with a batch");
  Tensor d;
  if (out) {
    d = *out;
  } else if (a.dim() == 2 && b.dim() == 2) {
    d = at::empty({a.size(0), b.size(1)}, a.options());
  } else {
    int64_t const batch = std::max(a.dim() == 3 ? a.size(0) : 1, b.dim() == 3 ? b.size(0) : 1);
    d = at::empty({batch, a.size(-2), b.size(-1)}, a.options());
  }
  Call call;
  call.operand[A] = operand_of(a);
  call.operand[B] = operand_of(b);
  call.operand[D] = operand_of(d);
  if (c) call.operand[C] = operand_of(*c);
  if (bias) call.operand[BIAS] = operand_of(*bias);
  for (Tensor const* x : std::array<Tensor const*, 4>{&b, &d, bias ? &*bias : &a, c ? &*c : &a})
    if (x->device() != a.device())
      raise(problem_error, "the arrays lie on different devices: A on ", a.device(), ", another on ", x->device());
  call.alpha = alpha, call.beta = beta, call.activation = activation, call.tf32 = as_tf32(a);
  call.invariant = invariant;
  call.device = std::max<int64_t>(a.device().index(), 0);
  return run(call, Key(call), !out) ? d : Tensor();
}

// ==== The dispatcher's kernels ====

using Matmul = Tensor(Tensor const&, Tensor const&, optional<Tensor> const&, optional<Tensor> const&, double, double,
                      c10::string_view, bool);

c10::TypedOperatorHandle<Matmul> const& handle() {
  static auto const found =
      c10::Dispatcher::singleton().findSchemaOrThrow("hgemm::matmul", "").typed<Matmul>();
  return found;
}

std::unordered_map<std::string, int64_t> activation_codes;

int64_t activation_code(c10::string_view word) {
  auto found = activation_codes.find(std::string(word));
  if (found == activation_codes.end()) raise(problem_error, "activation '", word, "' is unknown");
  return found->second;
}

bool records(Tensor const& x) { return x.requires_grad(); }
bool records(optional<Tensor> const& x) { return x && x->requires_grad(); }

Tensor compute(Tensor const& a, Tensor const& b, optional<Tensor> const& bias, optional<Tensor> const& c, double alpha,
               double beta, c10::string_view activation, bool invariant) {
  return matmul(a, b, bias, c, alpha, beta, activation_code(activation), invariant);
}

// ---- Gradients ----

// Tells whether the dispatcher has nothing to do with a tensor but to record and to compute: no mode, subclass or autocast.
struct Plain {
  c10::impl::LocalDispatchKeySet const local = c10::impl::tls_local_dispatch_key_set();
  uint64_t const allowed =
      (c10::DispatchKeySet({backend, c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::BackendSelect}) |
       c10::autograd_dispatch_keyset)
          .raw_repr();

  bool operator()(Tensor const& x) const {
    auto keys = (x.key_set() | local.included_) - local.excluded_;
    return (keys.raw_repr() & ~allowed) == 0;  // operator- would keep the backend
  }
  bool operator()(optional<Tensor> const& x) const { return !x || (*this)(*x); }
};

Tensor summed_to(Tensor const& x, at::IntArrayRef sizes) { return x.sizes() == sizes ? x : x.sum_to_size(sizes); }

// The shape that broadcasts a bias over the rows or the columns of D.
c10::SmallVector<int64_t, 3> broadcast(Tensor const& bias, Tensor const& d) {
  c10::SmallVector<int64_t, 3> shape;
  if (bias.dim() == 2 && d.dim() == 2) return {bias.size(0), bias.size(1)};
  if (bias.dim() == 2) shape.push_back(bias.size(0));
  bool const row = bias.size(-1) == d.size(-1);
  shape.push_back(row ? 1 : bias.size(-1));
  shape.push_back(row ? bias.size(-1) : 1);
  return shape;
}

Tensor product(Tensor const& a, Tensor const& b, double alpha, bool invariant, optional<Tensor> const& c = {},
               double beta = 0) {
  return handle().call(a, b, {}, c, alpha, beta, "none", invariant);
}

Tensor silu_gradient(Tensor const& d, Tensor const& x) {
  if (!at::GradMode::is_enabled()) return at::silu_backward(d, x);
  Tensor const s = x.sigmoid();  // at::silu_backward has no gradient
  return d * s * (1 + x * (1 - s));
}

// The gradients of _Product in hgemm/torch/operator.py, for plain tensors.
struct Product : torch::autograd::Function<Product> {
  static constexpr char const* activations[] = {"none", "relu", "gelu", "silu", "leaky_relu"};

  static bool differentiates(c10::string_view activation) {
    for (c10::string_view known : activations)
      if (activation == known) return true;
    return false;
  }

  static Tensor forward(torch::autograd::AutogradContext* ctx, Tensor const& a, Tensor const& b,
                        optional<Tensor> const& bias, optional<Tensor> const& c, double alpha, double beta,
                        std::string const& activation, bool invariant) {
    at::AutoDispatchBelowADInplaceOrView below;
    Tensor const d = handle().call(a, b, bias, c, alpha, beta, activation, invariant);
    ctx->save_for_backward({a, b, bias.value_or(Tensor()), c.value_or(Tensor()), activation == "relu" ? d : Tensor()});
    ctx->saved_data["alpha"] = alpha;
    ctx->saved_data["beta"] = beta;
    ctx->saved_data["activation"] = activation;
    ctx->saved_data["invariant"] = invariant;
    return d;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    auto const saved = ctx->get_saved_variables();
    Tensor const &a = saved[0], &b = saved[1], &bias = saved[2], &c = saved[3], &result = saved[4];
    double const alpha = ctx->saved_data["alpha"].toDouble(), beta = ctx->saved_data["beta"].toDouble();
    std::string const activation = ctx->saved_data["activation"].toStringRef();
    bool const invariant = ctx->saved_data["invariant"].toBool();
    Tensor d = gradients[0];
    if (activation == "relu") {
      d = at::threshold_backward(d, result, 0);  // the sign of the result is all that it needs
    } else if (activation != "none") {
      Tensor x = product(a, b, alpha, invariant, c.defined() ? optional<Tensor>(c) : optional<Tensor>(), beta);
      if (bias.defined()) x = x + bias.reshape(broadcast(bias, x));
      if (activation == "gelu") d = at::gelu_backward(d, x);
      if (activation == "silu") d = silu_gradient(d, x);
      if (activation == "leaky_relu") d = at::leaky_relu_backward(d, x, 0.01, false);
    }
    Tensor da, db, dbias, dc;
    size_t edge = 2;
    if (ctx->needs_input_grad(0)) da = summed_to(product(d, b.mT(), alpha, invariant), a.sizes());
    if (ctx->needs_input_grad(1)) {
      bool const flat = b.dim() == 2;  // the gradient sums over the batch, as over rows
      Tensor const rows = flat ? a.reshape({-1, a.size(-1)}) : a, of = flat ? d.reshape({-1, d.size(-1)}) : d;
      bool const as_weight = b.stride(-1) != 1 && b.stride(-2) == 1;  // a weight (n, k): autograd copies other strides
      db = as_weight ? product(of.mT(), rows, alpha, invariant).mT() : product(rows.mT(), of, alpha, invariant);
      db = summed_to(db, b.sizes());
    }
    if (bias.defined() && ctx->needs_input_grad(edge++))
      dbias = d.sum_to_size(broadcast(bias, d)).reshape(bias.sizes());
    if (c.defined() && ctx->needs_input_grad(edge)) dc = summed_to(beta * d, c.sizes());
    return {da, db, dbias, dc, Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

// Goes below autograd if no tensor requires gradients. Python records calls that are traced, or whose activation is new.
Tensor differentiate(c10::DispatchKeySet keys, Tensor const& a, Tensor const& b, optional<Tensor> const& bias,
                     optional<Tensor> const& c, double alpha, double beta, c10::string_view activation,
                     bool invariant) {
  if (!at::GradMode::is_enabled() || !(records(a) || records(b) || records(bias) || records(c))) {
    at::AutoDispatchBelowADInplaceOrView below;
    return handle().redispatch(keys & c10::after_ADInplaceOrView_keyset, a, b, bias, c, alpha, beta, activation,
                               invariant);
  }
  Plain const plain;
  if (plain(a) && plain(b) && plain(bias) && plain(c) && Product::differentiates(activation))
    return Product::apply(a, b, bias, c, alpha, beta, std::string(activation), invariant);
  py::gil_scoped_acquire gil;
  auto wrap = [](Tensor const& x) { return owned(THPVariable_Wrap(x)); };
  auto wrap_optional = [&](optional<Tensor> const& x) { return x ? wrap(*x) : py::object(py::none()); };
  py::object arguments = py::make_tuple(wrap(a), wrap(b), wrap_optional(bias), wrap_optional(c), alpha, beta,
                                        py::str(activation.data(), activation.size()), invariant);
  py::object result = owned(PyObject_CallObject(record, arguments.ptr()));
  return THPVariable_Unpack(result.ptr());
}

// Casts to the type of autocast, as torch.nn.functional.linear does.
Tensor cast(Tensor const& a, Tensor const& b, optional<Tensor> const& bias, optional<Tensor> const& c, double alpha,
            double beta, c10::string_view activation, bool invariant) {
  c10::impl::ExcludeDispatchKeyGuard below{c10::DispatchKeySet(autocast)};
  auto type = at::autocast::get_autocast_dtype(device_type);
  auto as = [&](Tensor const& x) { return at::autocast::cached_cast(type, x, device_type); };
  auto as_optional = [&](optional<Tensor> const& x) { return x ? optional<Tensor>(as(*x)) : x; };
  return handle().call(as(a), as(b), as_optional(bias), as_optional(c), alpha, beta, activation, invariant);
}

std::vector<std::unique_ptr<torch::Library>> registered;

void register_kernels() {
  auto add = [](c10::DispatchKey key, auto&& function) {
    registered.push_back(std::make_unique<torch::Library>(torch::Library::IMPL, "hgemm", key, __FILE__, __LINE__));
    registered.back()->impl("matmul", function);
  };
  add(backend, &compute);
  add(c10::DispatchKey::Autograd, &differentiate);
  add(autocast, &cast);
}

// ==== Products of aten ====
#ifdef HGEMM_OVERRIDES

enum {
  MM, MM_OUT, BMM, BMM_OUT, ADDMM, ADDMM_OUT, ADDMM_IN_PLACE, BADDBMM, BADDBMM_OUT, BADDBMM_IN_PLACE,
  MM_TYPE, MM_TYPE_OUT, BMM_TYPE, BMM_TYPE_OUT, ADDMM_TYPE, ADDMM_TYPE_OUT, BADDBMM_TYPE, BADDBMM_TYPE_OUT, OVERRIDES
};
constexpr std::array<char const*, 2> override_names[OVERRIDES] = {
    {"mm", ""},     {"mm", "out"},     {"bmm", ""},      {"bmm", "out"},     {"addmm", ""},
    {"addmm", "out"}, {"addmm_", ""}, {"baddbmm", ""}, {"baddbmm", "out"}, {"baddbmm_", ""},
    {"mm", "dtype"}, {"mm", "dtype_out"}, {"bmm", "dtype"}, {"bmm", "dtype_out"},
    {"addmm", "dtype"}, {"addmm", "dtype_out"}, {"baddbmm", "dtype"}, {"baddbmm", "dtype_out"}};

// An operator of aten: the kernel of torch, and how many products ran here and there.
struct Overridden {
  optional<c10::OperatorHandle> handle;
  optional<c10::SafeKernelFunction> kernel;
  std::atomic<int64_t> served{0}, passed{0};
} overridden[OVERRIDES];

std::vector<std::unique_ptr<torch::Library>> overrides;
std::unordered_set<Key, Hash> refused;         // guarded by `mutex`
std::atomic<bool> refuses_some{false};         // whether `refused` has keys
PyObject* refusals = nullptr;                  // the exceptions of products that no kernel supports

constexpr int64_t min_tf32 = 65536;  // products of fewer multiplications stay in torch, which computes them exactly

std::string full_name(int which) {
  auto const& [name, overload] = override_names[which];
  return *overload ? joined(name, ".", overload) : name;
}

bool is_refused(Key const& key) {
  if (!refuses_some) return false;
  std::lock_guard<std::mutex> lock(mutex);
  return refused.count(key) > 0;
}

// Tells whether torch computes a product that failed: no kernel supports it, or a graph captures it before its kernel is loaded.
bool passes(python_error const& error, Key const& key, int64_t device) {
  py::gil_scoped_acquire gil;
  if (PyErr_GivenExceptionMatches(error.type, refusals)) {
    std::lock_guard<std::mutex> lock(mutex);
    if (refused.size() >= max_launches) refused.clear();
    refused.insert(key);
    return refuses_some = true;
  }
  void* stream = nullptr;
  int capture = 0;
  return PyErr_GivenExceptionMatches(error.type, device_error) && !driver.stream(int32_t(device), &stream) &&
         !driver.capturing(stream, &capture) && capture;
}

// Returns alpha a b + beta c + bias, in `out` if there is one. The result is undefined if torch must compute it.
Tensor attempt(Tensor const& a_given, Tensor const& b_given, Tensor const* added, double beta, double alpha,
               Tensor const* out) {
  auto const type = a_given.scalar_type();
  auto const dims = a_given.dim();
  if ((type != at::kHalf && type != at::kBFloat16 && !as_tf32(a_given)) || type != b_given.scalar_type()) return {};
  if (!a_given.numel() || !b_given.numel() || dims != b_given.dim() || a_given.size(-1) != b_given.size(-2) ||
      (dims == 3 && a_given.size(0) != b_given.size(0)))
    return {};
  if (type == at::kFloat && a_given.size(-2) * a_given.size(-1) * b_given.size(-1) < min_tf32) return {};
  c10::SmallVector<int64_t, 3> sizes(a_given.sizes().begin(), a_given.sizes().end());
  sizes.back() = b_given.size(-1);
  auto fits = [&](Tensor const& x) {
    return x.scalar_type() == type && x.device() == a_given.device() && x.layout() == at::kStrided;
  };
  if (!fits(b_given) || (out && (!fits(*out) || out->sizes() != at::IntArrayRef(sizes)))) return {};

  at::AutoDispatchBelowADInplaceOrView below;
  Tensor const a = readable(a_given), b = readable(b_given);
  Call call;
  call.operand[A] = operand_of(a);
  call.operand[B] = operand_of(b);
  if (added && beta) {
    if (!fits(*added)) return {};
    bool const row = added->dim() == 1 && added->size(0) == sizes.back() && added->stride(0) == 1 && beta == 1;
    if (!row && added->sizes() != at::IntArrayRef(sizes)) return {};
    call.operand[row ? BIAS : C] = operand_of(*added);
    if (!row) call.beta = beta;
  }
  call.alpha = alpha, call.tf32 = type == at::kFloat, call.device = std::max<int64_t>(a.device().index(), 0);
  Operand& d = call.operand[D];
  if (out) {
    d = operand_of(*out);
  } else {  // as at::empty makes it; torch aligns every address
    d.type = int64_t(type), d.dims = dims;
    int64_t stride = 1;
    for (int64_t axis = dims - 1; axis >= 0; --axis) {
      d.sizes[axis] = sizes[axis], d.strides[axis] = stride;
      stride *= sizes[axis];
    }
  }
  Key const key(call);
  Key question = key;  // the library may refuse a product because D shares memory with an operand
  if (out)
    question.word[0] |= int64_t(out->is_alias_of(a)) << 62 | int64_t(out->is_alias_of(b)) << 61 |
                        int64_t(added && out->is_alias_of(*added)) << 60;
  if (is_refused(question)) return {};
  Tensor const result = out ? *out : at::empty(sizes, a.options());
  d.address = reinterpret_cast<int64_t>(result.const_data_ptr());
  try {
    return run(call, key, !out) ? result : Tensor();
  } catch (python_error const& error) {
    if (!passes(error, question, call.device)) throw;
    return {};
  }
}

// Runs the kernel of torch.
template <class... Given>
Tensor pass(int which, c10::DispatchKeySet keys, Given const&... given) {
  Overridden& of = overridden[which];
  of.passed.fetch_add(1, std::memory_order_relaxed);
  torch::jit::Stack stack{c10::IValue(given)...};
  of.kernel->callBoxed(*of.handle, keys, &stack);
  return stack.front().toTensor();
}

Tensor count(int which, Tensor&& made) {
  if (made.defined()) overridden[which].served.fetch_add(1, std::memory_order_relaxed);
  return std::move(made);
}

bool are_real(at::Scalar const& beta, at::Scalar const& alpha) {
  auto real = [](at::Scalar const& x) { return !x.isComplex() && !x.isSymbolic(); };
  return real(beta) && real(alpha);
}

Tensor attempt_sum(Tensor const& added, Tensor const& a, Tensor const& b, at::Scalar const& beta,
                   at::Scalar const& alpha, Tensor const* out) {
  return are_real(beta, alpha) ? attempt(a, b, &added, beta.toDouble(), alpha.toDouble(), out) : Tensor();
}

// Tells whether the result has the type of A. The overloads `dtype` say a type. The library computes no other one for them.
bool keeps_type(Tensor const&) { return true; }
bool keeps_type(Tensor const& a, at::ScalarType wanted) { return wanted == a.scalar_type(); }

template <int which, class... Type>
Tensor product_of(c10::DispatchKeySet keys, Tensor const& a, Tensor const& b, Type... type) {
  Tensor made = keeps_type(a, type...) ? count(which, attempt(a, b, nullptr, 0, 1, nullptr)) : Tensor();
  return made.defined() ? made : pass(which, keys, a, b, type...);
}

template <int which, class... Type>
Tensor& product_in(c10::DispatchKeySet keys, Tensor const& a, Tensor const& b, Type... type, Tensor& out) {
  if (!keeps_type(a, type...) || !count(which, attempt(a, b, nullptr, 0, 1, &out)).defined())
    pass(which, keys, a, b, type..., out);
  return out;
}

template <int which, class... Type>
Tensor sum_of(c10::DispatchKeySet keys, Tensor const& added, Tensor const& a, Tensor const& b, Type... type,
              at::Scalar const& beta, at::Scalar const& alpha) {
  Tensor made = keeps_type(a, type...) ? count(which, attempt_sum(added, a, b, beta, alpha, nullptr)) : Tensor();
  return made.defined() ? made : pass(which, keys, added, a, b, type..., beta, alpha);
}

template <int which, class... Type>
Tensor& sum_in(c10::DispatchKeySet keys, Tensor const& added, Tensor const& a, Tensor const& b, Type... type,
               at::Scalar const& beta, at::Scalar const& alpha, Tensor& out) {
  if (!keeps_type(a, type...) || !count(which, attempt_sum(added, a, b, beta, alpha, &out)).defined())
    pass(which, keys, added, a, b, type..., beta, alpha, out);
  return out;
}

template <int which>
Tensor& sum_in_place(c10::DispatchKeySet keys, Tensor& added, Tensor const& a, Tensor const& b, at::Scalar const& beta,
                     at::Scalar const& alpha) {
  if (!count(which, attempt_sum(added, a, b, beta, alpha, &added)).defined())
    pass(which, keys, added, a, b, beta, alpha);
  return added;
}

void forget_refused() {
  std::lock_guard<std::mutex> lock(mutex);
  refused.clear();
  refuses_some = false;
}

// override(backend, refusals): run aten's products on the library. Torch computes those that raise one of the exceptions.
PyObject* py_override(PyObject*, PyObject* arguments) {
  HANDLE_TH_ERRORS
  PyObject *word, *exceptions;
  if (!PyArg_ParseTuple(arguments, "O!O!", &PyUnicode_Type, &word, &PyTuple_Type, &exceptions)) return nullptr;
  Py_INCREF(exceptions);
  Py_XDECREF(std::exchange(refusals, exceptions));
  auto const key = c10::parseDispatchKey(py::reinterpret_borrow<py::str>(word));
  overrides.clear();
  forget_refused();
  for (int which = 0; which < OVERRIDES; ++which) {
    auto const& [name, overload] = override_names[which];
    Overridden& of = overridden[which];
    of.served = of.passed = 0;
    of.handle = c10::Dispatcher::singleton().findSchema({joined("aten::", name), overload});
    of.kernel.reset();
    if (of.handle && of.handle->hasComputedKernelForDispatchKey(key))
      of.kernel.emplace(of.handle->getComputedKernelForDispatchKey(key));
  }
  auto add = [&](int which, auto* function) {
    if (!overridden[which].kernel) return;  // torch has none of the overloads `dtype` on the CPU
    overrides.push_back(std::make_unique<torch::Library>(torch::Library::IMPL, "aten", key, __FILE__, __LINE__));
    overrides.back()->impl(full_name(which).c_str(), function);
  };
  add(MM, &product_of<MM>);
  add(MM_OUT, &product_in<MM_OUT>);
  add(BMM, &product_of<BMM>);
  add(BMM_OUT, &product_in<BMM_OUT>);
  add(ADDMM, &sum_of<ADDMM>);
  add(ADDMM_OUT, &sum_in<ADDMM_OUT>);
  add(ADDMM_IN_PLACE, &sum_in_place<ADDMM_IN_PLACE>);
  add(BADDBMM, &sum_of<BADDBMM>);
  add(BADDBMM_OUT, &sum_in<BADDBMM_OUT>);
  add(BADDBMM_IN_PLACE, &sum_in_place<BADDBMM_IN_PLACE>);
  using at::ScalarType;
  add(MM_TYPE, &product_of<MM_TYPE, ScalarType>);
  add(MM_TYPE_OUT, &product_in<MM_TYPE_OUT, ScalarType>);
  add(BMM_TYPE, &product_of<BMM_TYPE, ScalarType>);
  add(BMM_TYPE_OUT, &product_in<BMM_TYPE_OUT, ScalarType>);
  add(ADDMM_TYPE, &sum_of<ADDMM_TYPE, ScalarType>);
  add(ADDMM_TYPE_OUT, &sum_in<ADDMM_TYPE_OUT, ScalarType>);
  add(BADDBMM_TYPE, &sum_of<BADDBMM_TYPE, ScalarType>);
  add(BADDBMM_TYPE_OUT, &sum_in<BADDBMM_TYPE_OUT, ScalarType>);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// restore(): give torch's kernels back.
PyObject* py_restore(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  overrides.clear();
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// counts(): for each operator that was called, the products that ran here and in torch since `override`.
PyObject* py_counts(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  py::dict counts;
  for (int which = 0; which < OVERRIDES; ++which) {
    int64_t const served = overridden[which].served, passed = overridden[which].passed;
    if (served || passed) counts[py::str(full_name(which))] = py::make_tuple(served, passed);
  }
  return counts.release().ptr();
  END_HANDLE_TH_ERRORS
}

#else
void forget_refused() {}
#endif

// ==== Functions for Python ====

// Tells whether a Python object is a plain tensor on the device, and whether it records gradients.
struct Given {
  Plain const plain;
  bool const recording = at::GradMode::is_enabled();
  bool records = false;

  bool operator()(PyObject* object) {
    if (!THPVariable_CheckExact(object)) return false;
    Tensor const& x = THPVariable_Unpack(object);
    records = records || (recording && x.requires_grad());
    return x.device().type() == device_type && plain(x);
  }
  bool optional(PyObject* object) { return object == Py_None || (*this)(object); }
};

int64_t activation_of(PyObject* word) {
  PyObject* code = PyDict_GetItemWithError(activations, word);
  return code ? PyLong_AsLongLong(code) : -1;
}

PyObject* wrap(Tensor&& x) {
  if (x.defined()) return THPVariable_Wrap(std::move(x));
  Py_RETURN_NOTIMPLEMENTED;
}

optional<Tensor> unpack(PyObject* object) {
  return object == Py_None ? optional<Tensor>() : optional<Tensor>(THPVariable_Unpack(object));
}

// matmul(a, b, bias, c, alpha, beta, activation, out, batch_invariant): NotImplemented if the call is not plain, or records gradients.
PyObject* py_matmul(PyObject*, PyObject* const* given, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK(count == 9, "matmul takes 9 arguments");
  Given plain;
  if (!plain(given[0]) || !plain(given[1]) || !plain.optional(given[2]) || !plain.optional(given[3]) ||
      !plain.optional(given[7]) || plain.records)
    Py_RETURN_NOTIMPLEMENTED;
  double const alpha = PyFloat_AsDouble(given[4]), beta = PyFloat_AsDouble(given[5]);
  if (PyErr_Occurred()) return nullptr;
  int64_t const activation = activation_of(given[6]);
  if (activation < 0) Py_RETURN_NOTIMPLEMENTED;
  optional<Tensor> const out = unpack(given[7]);
  Tensor result;
  {
    py::gil_scoped_release no_gil;
    result = matmul(THPVariable_Unpack(given[0]), THPVariable_Unpack(given[1]), unpack(given[2]), unpack(given[3]),
                    alpha, beta, activation, given[8] == Py_True, out ? &*out : nullptr);
  }
  return wrap(std::move(result));
  END_HANDLE_TH_ERRORS
}

// ---- Expressions ----

struct Fused {
  Operand a, b, d;
  std::vector<Operand> more;  // inputs that are arrays, in order, then further results; without an address where it is a number
  PyObject* program;          // what describe_expression takes
  int64_t number;             // of the program: no other one has it
  double alpha, beta;
  int64_t device;
  bool tf32, invariant;

  std::vector<int64_t> key() const {
    std::vector<int64_t> words;
    words.reserve(8 * (more.size() + 3) + 4);
    auto add = [&](Operand const& x) {
      words.push_back(x.type << 13 | x.dims << 5 | (x.address & 31));
      words.insert(words.end(), x.sizes, x.sizes + 3);
      words.insert(words.end(), x.strides, x.strides + 3);
    };
    add(a), add(b), add(d);
    for (Operand const& x : more) add(x);
    int64_t numbers[2];
    std::memcpy(&numbers[0], &alpha, 8);
    std::memcpy(&numbers[1], &beta, 8);
    words.insert(words.end(), {numbers[0], numbers[1], number, device << 2 | tf32 << 1 | invariant});
    return words;
  }
};

// Launches an expression, whose results share no memory with its operands.
void run(Fused const& call) {
  void* stream = nullptr;
  checked(driver.stream(int32_t(call.device), &stream), "find the current stream");
  std::shared_ptr<Launch const> const found = launch_of(expressions, call.key(), describe_expression, [&] {
    py::list more;
    for (Operand const& x : call.more) more.append(described(x));
    return py::make_tuple(described(call.a), described(call.b), described(call.d), more,
                          py::reinterpret_borrow<py::object>(call.program), call.device, call.alpha, call.beta, call.tf32,
                          call.invariant, reinterpret_cast<uint64_t>(stream));
  });
  if (found->empty) return;
  TORCH_CHECK(found->more_offsets.size() == call.more.size(), "an expression has another number of operands");
  int64_t address[OPERANDS] = {};
  address[A] = call.a.address, address[B] = call.b.address, address[D] = call.d.address;
  c10::SmallVector<int64_t, 8> more;
  for (Operand const& x : call.more) more.push_back(x.address);
  launch_at(*found, address, more, call.device, stream);
}

// plain(tensors...): tell whether a call with these tensors needs nothing of the dispatcher but gradients.
PyObject* py_plain(PyObject*, PyObject* const* given, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  Given plain;
  for (Py_ssize_t i = 0; i < count; ++i)
    if (!plain(given[i])) Py_RETURN_FALSE;
  Py_RETURN_TRUE;
  END_HANDLE_TH_ERRORS
}

// fused(a, b, d, more, program, number, alpha, beta, batch_invariant): launch an expression. `more` has the inputs, None for
// numbers, and the further results. Results are new tensors. `number` is that of the program.
PyObject* py_fused(PyObject*, PyObject* const* given, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK(count == 9 && PyTuple_Check(given[3]), "fused takes 9 arguments, of which the fourth is a tuple");
  Fused call;
  auto unpacked = [](PyObject* object) -> Tensor const& {
    TORCH_CHECK(THPVariable_Check(object), "an operand is no tensor");
    return THPVariable_Unpack(object);
  };
  Tensor const &a = unpacked(given[0]), &b = unpacked(given[1]), &d = unpacked(given[2]);
  auto add = [&](Tensor const& x) {
    if (x.device() != a.device())
      raise(problem_error, "the arrays lie on different devices: A on ", a.device(), ", another on ", x.device());
    return operand_of(x);
  };
  call.a = add(a), call.b = add(b), call.d = add(d);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given[3]); ++i) {
    PyObject* one = PyTuple_GET_ITEM(given[3], i);
    call.more.push_back(one == Py_None ? Operand() : add(unpacked(one)));
  }
  call.program = given[4], call.number = PyLong_AsLongLong(given[5]);
  call.alpha = PyFloat_AsDouble(given[6]), call.beta = PyFloat_AsDouble(given[7]);
  if (PyErr_Occurred()) return nullptr;
  call.device = std::max<int64_t>(a.device().index(), 0), call.tf32 = as_tf32(a), call.invariant = given[8] == Py_True;
  {
    py::gil_scoped_release no_gil;
    run(call);
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// ---- Linear layers ----

// x weight^T + bias by the dispatcher, which records gradients.
Tensor recorded_linear(Tensor const& x, Tensor const& weight, optional<Tensor> const& bias, c10::string_view activation,
                       bool invariant) {
  if (x.dim() == 2) return handle().call(x, weight.t(), bias, {}, 1, 0, activation, invariant);
  c10::SmallVector<int64_t, 5> sizes(x.sizes().begin(), x.sizes().end());
  sizes.back() = weight.size(0);
  Tensor const rows = x.reshape({-1, x.size(-1)});
  return handle().call(rows, weight.t(), bias, {}, 1, 0, activation, invariant).reshape(sizes);
}

// linear(x, weight, bias, activation, batch_invariant): NotImplemented if the call is not plain, or x needs a copy.
PyObject* py_linear(PyObject*, PyObject* const* given, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK(count == 5, "linear takes 5 arguments");
  Given plain;
  if (!plain(given[0]) || !plain(given[1]) || !plain.optional(given[2])) Py_RETURN_NOTIMPLEMENTED;
  Tensor const &x = THPVariable_Unpack(given[0]), &weight = THPVariable_Unpack(given[1]);
  int64_t const activation = activation_of(given[3]), dims = x.dim();
  if (activation < 0 || dims < 1 || weight.dim() != 2 || x.device() != weight.device()) Py_RETURN_NOTIMPLEMENTED;
  int64_t const k = x.size(dims - 1), n = weight.size(0);
  bool const rows_apart = dims == 2 && x.stride(1) == 1 && is_readable(x.size(0), k, x.stride(0), 1);
  if (!k || k != weight.size(1) || !(rows_apart || x.is_contiguous())) Py_RETURN_NOTIMPLEMENTED;
  if (!is_readable(n, k, weight.stride(0), weight.stride(1))) Py_RETURN_NOTIMPLEMENTED;
  if (plain.records) {
    Py_ssize_t length = 0;
    char const* word = PyUnicode_AsUTF8AndSize(given[3], &length);
    if (!word) return nullptr;
    optional<Tensor> const bias = unpack(given[2]);
    Tensor y;
    {
      py::gil_scoped_release no_gil;
      y = recorded_linear(x, weight, bias, c10::string_view(word, size_t(length)), given[4] == Py_True);
    }
    return THPVariable_Wrap(std::move(y));
  }

  Call call;
  int64_t const rows = x.numel() / k;
  call.operand[A] = {int64_t(x.const_data_ptr()), int64_t(x.scalar_type()), 2, {rows, k},
                     {rows_apart ? x.stride(0) : k, 1}};
  call.operand[B] = {int64_t(weight.const_data_ptr()), int64_t(weight.scalar_type()), 2, {k, n},
                     {weight.stride(1), weight.stride(0)}};
  if (given[2] != Py_None) {
    Tensor const& bias = THPVariable_Unpack(given[2]);
    if (bias.dim() != 1 || bias.device() != x.device()) Py_RETURN_NOTIMPLEMENTED;
    call.operand[BIAS] = operand_of(bias);
  }
  call.activation = activation, call.tf32 = as_tf32(x), call.invariant = given[4] == Py_True;
  call.device = std::max<int64_t>(x.device().index(), 0);
  Tensor d;
  {
    py::gil_scoped_release no_gil;
    c10::SmallVector<int64_t, 5> sizes(x.sizes().begin(), x.sizes().end());
    sizes.back() = n;
    d = at::empty(sizes, x.options());
    call.operand[D] = {int64_t(d.const_data_ptr()), int64_t(d.scalar_type()), 2, {rows, n}, {n, 1}};
    run(call, Key(call), true);
  }
  return THPVariable_Wrap(std::move(d));
  END_HANDLE_TH_ERRORS
}

// configure(driver, describe, describe_expression, allocate, record, activations, ProblemError, DeviceError, backend): set the
// callbacks, and register the kernels.
PyObject* py_configure(PyObject*, PyObject* arguments) {
  HANDLE_TH_ERRORS
  PyObject *entries, *word;
  if (!PyArg_ParseTuple(arguments, "O!OOOOO!OOO!", &PyDict_Type, &entries, &describe, &describe_expression, &allocate,
                        &record, &PyDict_Type, &activations, &problem_error, &device_error, &PyUnicode_Type, &word))
    return nullptr;
  for (PyObject* kept : {describe, describe_expression, allocate, record, activations, problem_error, device_error})
    Py_INCREF(kept);
  py::dict const addresses = py::reinterpret_borrow<py::dict>(entries);
  auto set_optional = [&](auto& function, char const* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(number(addresses[name]));
  };
  auto set = [&](auto& function, char const* name) {
    set_optional(function, name);
    TORCH_CHECK(function, joined("the driver has no ", name));
  };
  set(driver.launch, "cuLaunchKernelEx");
  set(driver.encode, "cuTensorMapEncodeTiled");
  set(driver.zero, "cuMemsetD8Async");
  set(driver.context, "cuCtxGetCurrent");
  set(driver.push, "cuCtxPushCurrent");
  set(driver.pop, "cuCtxPopCurrent");
  set(driver.capturing, "cuStreamIsCapturing");
  set(driver.error, "cuGetErrorString");
  set_optional(driver.capture_info, "cuStreamGetCaptureInfo");
  set_optional(driver.node_type, "cuGraphNodeGetType");
  set_optional(driver.kernel_node, "cuGraphKernelNodeGetParams");
  set(driver.stream, "stream");
  for (auto [name, code] : py::reinterpret_borrow<py::dict>(activations))
    activation_codes[name.cast<std::string>()] = code.cast<int64_t>();
  backend = c10::parseDispatchKey(py::reinterpret_borrow<py::str>(word));
  device_type = c10::dispatchKeyToDeviceType(backend);
  autocast = device_type == c10::DeviceType::CUDA ? c10::DispatchKey::AutocastCUDA : c10::DispatchKey::AutocastCPU;
  register_kernels();
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// forget(): drop the launches, because another library is in use. Python keeps the workspaces: graphs may use them.
PyObject* py_forget(PyObject*, PyObject*) {
  forget_refused();
  std::lock_guard<std::mutex> lock(mutex);
  launches.clear();
  expressions.clear();
  workspaces.clear();
  ++generation;
  Py_RETURN_NONE;
}

// release(): unregister the kernels.
PyObject* py_release(PyObject*, PyObject*) {
  registered.clear();
  std::lock_guard<std::mutex> lock(mutex);
  launches.clear();
  expressions.clear();
  workspaces.clear();
  ++generation;
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"matmul", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&py_matmul)), METH_FASTCALL, nullptr},
    {"plain", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&py_plain)), METH_FASTCALL, nullptr},
    {"fused", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&py_fused)), METH_FASTCALL, nullptr},
    {"linear", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&py_linear)), METH_FASTCALL, nullptr},
    {"configure", &py_configure, METH_VARARGS, nullptr},
    {"forget", &py_forget, METH_NOARGS, nullptr},
    {"release", &py_release, METH_NOARGS, nullptr},
#ifdef HGEMM_OVERRIDES
    {"override", &py_override, METH_VARARGS, nullptr},
    {"restore", &py_restore, METH_NOARGS, nullptr},
    {"counts", &py_counts, METH_NOARGS, nullptr},
#endif
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "hgemm_torch_operator", nullptr, -1, methods,
                      nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_hgemm_torch_operator() { return PyModule_Create(&module); }
