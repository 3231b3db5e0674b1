# Authorization policy of a SPIRE server (1.13) whose registrar is Vestibule: SPIRE's own policy, and for
# the gateway's SPIFFE ID nothing but the seven calls that it makes. With this a stolen SVID of the
# gateway can neither mint an SVID nor read or change bundles, authorities, join tokens or federation.
#
#   server { admin_ids = ["spiffe://example.org/vestibule"]
#     experimental { auth_opa_policy_engine { local {
#       rego_path        = "/etc/spire/vestibule.rego"
#       policy_data_path = "/etc/spire/policy_data.json" } } } }
#
# policy_data.json is the file of that name in SPIRE's source, pkg/server/authpolicy, of the same version.
package spire

result = {
  "allow": allow,
  "allow_if_admin": allow_if_admin,
  "allow_if_local": allow_if_local,
  "allow_if_downstream": allow_if_downstream,
  "allow_if_agent": allow_if_agent,
}

# The SPIFFE ID of the gateway, as in admin_ids: change it to yours.
gateway if input.caller == "spiffe://example.org/vestibule"

gateway_calls := {
  "/spire.api.server.agent.v1.Agent/BanAgent",
  "/spire.api.server.agent.v1.Agent/DeleteAgent",
  "/spire.api.server.agent.v1.Agent/ListAgents",
  "/spire.api.server.entry.v1.Entry/BatchCreateEntry",
  "/spire.api.server.entry.v1.Entry/BatchDeleteEntry",
  "/spire.api.server.entry.v1.Entry/BatchUpdateEntry",
  "/spire.api.server.entry.v1.Entry/ListEntries",
}

default allow = false
default allow_if_admin = false
default allow_if_local = false
default allow_if_downstream = false
default allow_if_agent = false

called := r if {
  some r in data.apis
  r.full_method == input.full_method
}

allow = true if called.allow_any

allow_if_local = true if called.allow_local

allow_if_downstream = true if called.allow_downstream

allow_if_agent = true if called.allow_agent

allow_if_admin = true if {
  called.allow_admin
  not gateway
}

allow_if_admin = true if {
  gateway
  input.full_method in gateway_calls
}
