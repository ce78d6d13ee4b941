// A library that looks like a CUDA driver and has too little of it.
extern "C" {

int cuInit(unsigned /*flags*/);

// NOLINTNEXTLINE(readability-identifier-naming): the driver's name
int cuInit(unsigned /*flags*/) {
  return 0;
}
}
