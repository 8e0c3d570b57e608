#include "server/rpc/convert/payload_digest.h"

#include <openssl/evp.h>

#include <memory>

#include "absl/strings/escaping.h"
#include "engine/base/check.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"

namespace penstock {

std::string PayloadDigest(const google::protobuf::Message& message, const std::initializer_list<const char*>& cleared) {
  std::unique_ptr<google::protobuf::Message> copy(message.New());
  copy->CopyFrom(message);
  for (const char* name : cleared) {
    const auto* field = copy->GetDescriptor()->FindFieldByName(name);
    if (field != nullptr) copy->GetReflection()->ClearField(copy.get(), field);
  }
  std::string bytes = message.GetDescriptor()->full_name() + '\0';
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream output(&stream);
    output.SetSerializationDeterministic(true);
    copy->SerializeToCodedStream(&output);
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  PENSTOCK_CHECK(EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(), nullptr) == 1);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), size));
}

}  // namespace penstock
