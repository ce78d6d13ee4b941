// What each request type's frames are declared to be, release by release (wire.md section 6).
#include "protocol/requests.h"

namespace larder::protocol {
namespace {

using K = PayloadKind;

}  // namespace

Payloads NegotiateRequest::payloads(Release) {
  return kPayloadList<K::kInt>;
}

Payloads ModuleCallRequest::payloads(Release) {
  return kPayloadList<K::kModuleCall>;
}

Payloads EmptyRequest::payloads(Release) {
  return {};
}

Payloads ClearRequest::payloads(Release release) {
  return release < Release::k056 ? Payloads{} : Payloads(kPayloadList<K::kBool>);
}

Payloads PingRequest::payloads(Release release) {
  return release < Release::k050 ? Payloads{} : Payloads(kPayloadList<K::kOptionalInt>);
}

Payloads InstanceRequest::payloads(Release) {
  return kPayloadList<K::kInt>;
}

Payloads SessionRequest::payloads(Release) {
  return kPayloadList<K::kString>;
}

Payloads WaitRequest::payloads(Release) {
  return kPayloadList<K::kString, K::kFloat>;
}

Payloads LookupRequest::payloads(Release) {
  return kPayloadList<K::kKey, K::kInt>;
}

Payloads FreeLookupLocksRequest::payloads(Release release) {
  if (release < Release::k057rc3) {
    return kPayloadList<K::kSchedulerKey, K::kInt>;
  }
  return kPayloadList<K::kSchedulerKey, K::kInt, K::kTokenSpans>;
}

Payloads PrepareStoreRequest::payloads(Release release) {
  if (release < Release::k057rc3) {
    return kPayloadList<K::kWorkerKey, K::kInt>;
  }
  return kPayloadList<K::kWorkerKey, K::kInt, K::kIntArrays>;
}

Payloads TransferRequest::payloads(Release) {
  return kPayloadList<K::kWorkerKey, K::kInt>;
}

Payloads CommitStoreRequest::payloads(Release) {
  return kPayloadList<K::kWorkerKey, K::kInt, K::kBinary>;
}

Payloads RegisterEngineDrivenRequest::payloads(Release) {
  return kPayloadList<K::kRegistration>;
}

Payloads StoreRequest::payloads(Release release) {
  if (release < Release::k047) {
    return kPayloadList<K::kKey, K::kInt, K::kIntArray, K::kBinary>;
  }
  return kPayloadList<K::kKey, K::kInt, K::kIntArrays, K::kBinary>;
}

Payloads RetrieveRequest::payloads(Release release) {
  if (release < Release::k047) {
    return kPayloadList<K::kKey, K::kInt, K::kIntArray, K::kBinary, K::kInt>;
  }
  return kPayloadList<K::kKey, K::kInt, K::kIntArrays, K::kBinary, K::kInt>;
}

Payloads RegisterKvCacheRequest::payloads(Release release) {
  if (release < Release::k047) {
    return kPayloadList<K::kInt, K::kTensors, K::kString, K::kInt, K::kEngineType, K::kLayoutHints>;
  }
  return kPayloadList<K::kInt,
                      K::kTensors,
                      K::kString,
                      K::kInt,
                      K::kEngineType,
                      K::kLayoutHints,
                      K::kEngineGroups>;
}

Payloads BlockAllocationRequest::payloads(Release) {
  return kPayloadList<K::kInt, K::kString, K::kAllocationRecords>;
}

}  // namespace larder::protocol
