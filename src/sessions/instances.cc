#include "sessions/instances.h"

#include <algorithm>

#include "base/check.h"
#include "base/log.h"

namespace larder::sessions {

Instances::Instances(const InstanceLimits& limits, Quarantine& quarantine, const Clock& clock)
    : limits_(limits), quarantine_(quarantine), clock_(clock) {}

Instances::Registered Instances::add(InstanceId id,
                                     const Registration& registration,
                                     ConnectionId connection) {
  std::shared_ptr<Instance> replaced;
  std::shared_ptr<Instance> again;
  // It starts over, so what was taken from it earlier, when it was silent or slow, need not rest
  // for long either.
  quarantine_.shorten(id, limits_.quarantine_restart);
  {
    const MutexLock lock(mutex_);
    forget_told(id);
    forget_refused(id);
    const auto found = instances_.find(id);
    if (found == instances_.end()) {
      if (instances_.size() >= limits_.instances_max) {
        return Registered::kTooMany;
      }
      instances_.emplace(id,
                         std::make_shared<Instance>(id, registration, connection, clock_.now()));
      count_layout(registration);
      return Registered::kNew;
    }
    if (found->second->registration == registration) {
      again = found->second;
    } else {
      replaced = std::exchange(
          found->second, std::make_shared<Instance>(id, registration, connection, clock_.now()));
      if (replaced->has_pinged()) {
        found->second->pinged();
      }
      uncount_layout(replaced->registration);
      count_layout(registration);
    }
  }
  // Rests even if the connection it was opened over is gone: who registers again lives, and so may
  // its copies.
  if (replaced != nullptr) {
    quarantine_.add(replaced->close(), id, connection, limits_.quarantine_restart);
    return Registered::kReplaced;
  }
  quarantine_.add(again->drop_transfers(), id, connection, limits_.quarantine_restart);
  again->seen(connection, clock_.now());
  again->forget_kind();
  return Registered::kAgain;
}

std::shared_ptr<Instance> Instances::find(InstanceId id, ConnectionId connection) {
  const MutexLock lock(mutex_);
  const auto found = instances_.find(id);
  if (found == instances_.end()) {
    return nullptr;
  }
  found->second->seen(connection, clock_.now());
  return found->second;
}

bool Instances::remove(InstanceId id) {
  std::shared_ptr<Instance> removed;
  {
    const MutexLock lock(mutex_);
    const auto found = instances_.find(id);
    if (found != instances_.end()) {
      removed = std::move(found->second);
      instances_.erase(found);
      uncount_layout(removed->registration);
    }
  }
  quarantine_.shorten(id, limits_.quarantine_done);
  if (removed == nullptr) {
    return false;
  }
  quarantine_.add(removed->close(), id, removed->connection(), limits_.quarantine_done);
  return true;
}

void Instances::add_refused(InstanceId id,
                            const std::string& model_name,
                            std::int64_t world_size,
                            ConnectionId connection) {
  std::shared_ptr<Instance> replaced;
  {
    const MutexLock lock(mutex_);
    forget_told(id);
    if (const auto found = instances_.find(id); found != instances_.end()) {
      replaced = std::move(found->second);
      instances_.erase(found);
      uncount_layout(replaced->registration);
    }
    if (refused_.size() < limits_.instances_max || refused_.contains(id)) {
      const ModelKey model{model_name, world_size};
      const auto [place, is_new] = refused_.try_emplace(id);
      if (!is_new) {
        uncount_refused(place->second.model);
      }
      place->second = Refused{model, connection, clock_.now(), place->second.pinged};
      ++models_[model].refused;
    }
  }
  if (replaced != nullptr) {
    quarantine_.add(replaced->close(), id, connection, limits_.quarantine_restart);
  }
}

bool Instances::remove_refused(InstanceId id) {
  const MutexLock lock(mutex_);
  return forget_refused(id);
}

bool Instances::forget_refused(InstanceId id) {
  const auto found = refused_.find(id);
  if (found == refused_.end()) {
    return false;
  }
  uncount_refused(found->second.model);
  refused_.erase(found);
  return true;
}

void Instances::turn_away(InstanceId id) {
  const MutexLock lock(mutex_);
  if (const auto found = refused_.find(id); found != refused_.end()) {
    found->second.turned_away = true;
  }
}

bool Instances::ping(InstanceId id, ConnectionId connection) {
  const MutexLock lock(mutex_);
  if (const auto found = instances_.find(id); found != instances_.end()) {
    found->second->seen(connection, clock_.now());
    found->second->pinged();
    return true;
  }
  if (const auto found = refused_.find(id); found != refused_.end()) {
    found->second.last_seen = clock_.now();
    found->second.connection = connection;
    found->second.pinged = true;
    return !found->second.turned_away;
  }
  return !tell_once(id);
}

bool Instances::ping_connection(ConnectionId connection, bool is_reconnect) {
  const MutexLock lock(mutex_);
  const Company company = note_life_of(connection);
  if (company.has_any) {
    return !company.is_turned_away;
  }
  return !is_reconnect || !told_connections_.insert(connection).second;
}

Instances::Company Instances::note_life_of(ConnectionId connection) {
  Company company;
  for (const auto& [id, instance] : instances_) {
    if (instance->connection() == connection) {
      instance->seen(connection, clock_.now());
      instance->pinged();
      company.has_any = true;
    }
  }
  for (auto& [id, refused] : refused_) {
    if (refused.connection == connection) {
      refused.last_seen = clock_.now();
      refused.pinged = true;
      company.has_any = true;
      company.is_turned_away = company.is_turned_away || refused.turned_away;
    }
  }
  return company;
}

RegisteredLayouts Instances::layouts_of(const std::string& model_name,
                                        std::int64_t world_size) const {
  RegisteredLayouts answer;
  const MutexLock lock(mutex_);
  if (const auto found = models_.find({model_name, world_size}); found != models_.end()) {
    for (const auto& [layout, count] : found->second.layouts) {
      answer.layouts.push_back(layout);
    }
    answer.refused = found->second.refused > 0;
  }
  return answer;
}

void Instances::connection_dropped(ConnectionId connection) {
  const MutexLock lock(mutex_);
  told_connections_.erase(connection);
}

void Instances::connection_closed(ConnectionId connection) {
  {
    const MutexLock lock(mutex_);
    closed_.emplace(connection, clock_.now());
    told_connections_.erase(connection);
  }
  quarantine_.connection_closed(connection);
}

std::size_t Instances::sweep() {
  const TimePoint now = clock_.now();
  const std::vector<std::shared_ptr<Instance>> silent = take_silent(now);
  for (const std::shared_ptr<Instance>& instance : silent) {
    log::info(
        "instance {} (model {}) has gone silent; its registration and open transfers are dropped",
        static_cast<std::uint64_t>(instance->id),
        instance->registration.model_name);
    rest(instance->close(), instance->id, instance->connection(), limits_.quarantine_silence);
  }
  std::vector<std::shared_ptr<Instance>> living;
  {
    const MutexLock lock(mutex_);
    std::erase_if(closed_, [now, this](const auto& entry) {
      return now - entry.second > 2 * limits_.reconnect_grace;
    });
    for (const auto& [id, instance] : instances_) {
      living.push_back(instance);
    }
  }
  for (const std::shared_ptr<Instance>& instance : living) {
    rest(instance->expire_stores(now, limits_.write_ttl),
         instance->id,
         instance->connection(),
         limits_.quarantine_silence);
  }
  return silent.size();
}

std::size_t Instances::count() const {
  const MutexLock lock(mutex_);
  return instances_.size();
}

std::vector<InstanceStatus> Instances::status() const {
  std::vector<std::shared_ptr<Instance>> living;
  {
    const MutexLock lock(mutex_);
    living.reserve(instances_.size());
    for (const auto& [id, instance] : instances_) {
      living.push_back(instance);
    }
  }
  std::vector<InstanceStatus> all;
  all.reserve(living.size());
  for (const std::shared_ptr<Instance>& instance : living) {
    all.push_back({instance->id,
                   instance->registration,
                   instance->kind(),
                   instance->connection(),
                   clock_.now() - instance->last_seen(),
                   instance->open_transfers()});
  }
  return all;
}

std::vector<InstanceId> Instances::refused_ids() const {
  std::vector<InstanceId> ids;
  const MutexLock lock(mutex_);
  for (const auto& [id, refused] : refused_) {
    ids.push_back(id);
  }
  return ids;
}

void Instances::count_layout(const Registration& registration) {
  auto& layouts = models_[{registration.model_name, registration.world_size}].layouts;
  const auto found = std::find_if(layouts.begin(), layouts.end(), [&](const auto& counted) {
    return counted.first == registration.groups;
  });
  if (found == layouts.end()) {
    layouts.emplace_back(registration.groups, 1);
  } else {
    ++found->second;
  }
}

void Instances::uncount_layout(const Registration& registration) {
  const auto model = models_.find({registration.model_name, registration.world_size});
  LARDER_CHECK(model != models_.end());
  auto& layouts = model->second.layouts;
  const auto found = std::find_if(layouts.begin(), layouts.end(), [&](const auto& counted) {
    return counted.first == registration.groups;
  });
  LARDER_CHECK(found != layouts.end());
  if (--found->second == 0) {
    layouts.erase(found);
  }
  if (layouts.empty() && model->second.refused == 0) {
    models_.erase(model);
  }
}

void Instances::uncount_refused(const ModelKey& model) {
  const auto found = models_.find(model);
  LARDER_CHECK(found != models_.end() && found->second.refused > 0);
  if (--found->second.refused == 0 && found->second.layouts.empty()) {
    models_.erase(found);
  }
}

void Instances::rest(Quarantine::Held held, InstanceId id, ConnectionId connection, Duration time) {
  quarantine_.add(std::move(held), id, connection, time);
  bool gone = false;
  {
    const MutexLock lock(mutex_);
    gone = closed_.contains(connection);
  }
  // Asked after the memory was added, as connection_closed() frees after it noted the connection:
  // one of them sees both.
  if (gone) {
    quarantine_.connection_closed(connection);
  }
}

bool Instances::is_silent(TimePoint now,
                          TimePoint last_seen,
                          bool pinged,
                          ConnectionId connection) const {
  if (const auto closed = closed_.find(connection); closed != closed_.end()) {
    if (now - closed->second > limits_.reconnect_grace) {
      return true;
    }
  }
  if (limits_.reap_timeout == Duration::zero()) {
    return false;
  }
  return now - last_seen > (pinged ? limits_.reap_timeout : limits_.registration_grace);
}

bool Instances::tell_once(InstanceId id) {
  if (told_.contains(id)) {
    return false;
  }
  told_.emplace(id, told_order_.insert(told_order_.end(), id));
  while (told_order_.size() > limits_.told_max) {
    forget_told(told_order_.front());
  }
  return true;
}

void Instances::forget_told(InstanceId id) {
  if (const auto found = told_.find(id); found != told_.end()) {
    told_order_.erase(found->second);
    told_.erase(found);
  }
}

std::vector<std::shared_ptr<Instance>> Instances::take_silent(TimePoint now) {
  std::vector<std::shared_ptr<Instance>> silent;
  const MutexLock lock(mutex_);
  for (auto entry = instances_.begin(); entry != instances_.end();) {
    const Instance& instance = *entry->second;
    if (is_silent(now, instance.last_seen(), instance.has_pinged(), instance.connection())) {
      uncount_layout(instance.registration);
      silent.push_back(std::move(entry->second));
      entry = instances_.erase(entry);
    } else {
      ++entry;
    }
  }
  for (auto entry = refused_.begin(); entry != refused_.end();) {
    const Refused& refused = entry->second;
    if (is_silent(now, refused.last_seen, refused.pinged, refused.connection)) {
      uncount_refused(refused.model);
      entry = refused_.erase(entry);
    } else {
      ++entry;
    }
  }
  return silent;
}

}  // namespace larder::sessions
