package xds

//lint:file-ignore SA1019 control planes send what is deprecated, too

import (
	"fmt"
	"maps"
	"slices"

	rbacconfigv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"gatehouse.internal/forwarder/rbac"
)

// The most policies of an RBAC filter, and conditions in all of them.
const (
	mostPolicies   = 1 << 14
	mostConditions = 1 << 17
)

// rbacFields tells what becomes of the fields of RBAC, the network filter.
// Addresses, names and certificates don't change, so that to enforce the rules
// again is to the same effect.
var rbacFields = union(
	allOf(applied, "rules", "shadow_rules"),
	allOf(harmless, "stat_prefix", "shadow_rules_stat_prefix", "enforcement_type"),
	allOf(refused, "matcher"),
	allOf(ignored, "shadow_matcher", "delay_deny"), // the former enforces nothing
)

// The fields of the messages of rules. What is not known of them has the chain refuse
// its connections; in shadow rules it has these left out.
var (
	rulesFields  = union(allOf(applied, "action", "policies"), allOf(ignored, "audit_logging_options"))
	policyOfRBAC = union(
		allOf(applied, "permissions", "principals"),
		allOf(refused, "condition", "checked_condition"),
		allOf(harmless, "cel_config"), // of conditions
	)
	permissionFields = union(
		allOf(applied, "and_rules", "or_rules", "any", "destination_ip", "destination_port", "destination_port_range", "not_rule", "requested_server_name"),
		allOf(refused, "header", "url_path", "metadata", "matcher", "uri_template", "sourced_metadata"),
	)
	principalFields = union(
		allOf(applied, "and_ids", "or_ids", "any", "authenticated", "source_ip", "direct_remote_ip", "remote_ip", "not_id"),
		allOf(refused, "header", "url_path", "metadata", "filter_state", "sourced_metadata", "custom"),
	)
)

// rbac reads an RBAC filter.
func (r *chainReader) rbac(config *anypb.Any, path string) error {
	var m rbacv3.RBAC
	if err := unmarshal(config, &m, path); err != nil {
		return err
	}
	path += ".typed_config."
	rules, err := r.rules(m.GetRules(), path+"rules.", true)
	if err != nil {
		return err
	}
	shadow, err := r.rules(m.GetShadowRules(), path+"shadow_rules.", false)
	if err != nil {
		return err
	}
	r.sort(r.fields(&m, path, rbacFields))
	r.c.RBAC = append(r.c.RBAC, RBAC{rules, shadow})
	return nil
}

// rules reads rules; if they are not enforced, they are left out if they have
// something that is not known here.
func (r *chainReader) rules(m *rbacconfigv3.RBAC, path string, enforced bool) (*rbac.Rules, error) {
	if m == nil {
		return nil, nil
	}
	out := new(rbac.Rules)
	switch m.GetAction() {
	case rbacconfigv3.RBAC_ALLOW:
		out.Action = rbac.Allow
	case rbacconfigv3.RBAC_DENY:
		out.Action = rbac.Deny
	case rbacconfigv3.RBAC_LOG:
		out.Action = rbac.Log
	default:
		return nil, fmt.Errorf("%saction: %d: not known", path, m.GetAction())
	}
	if n := len(m.GetPolicies()); n > mostPolicies {
		return nil, fmt.Errorf("%spolicies: %d: want at most %d", path, n, mostPolicies)
	}
	rr := ruleReader{left: mostConditions}
	for _, name := range slices.Sorted(maps.Keys(m.GetPolicies())) {
		p := m.GetPolicies()[name]
		at := fmt.Sprintf("%spolicies[%q].", path, name)
		if p.GetCondition() != nil {
			rr.refuse("%scondition", at)
		}
		if p.GetCheckedCondition() != nil {
			rr.refuse("%schecked_condition", at)
		}
		policy := rbac.Policy{Name: name}
		for i, x := range p.GetPermissions() {
			rule, err := rr.permission(x, fmt.Sprintf("%spermissions[%d].", at, i), 0)
			if err != nil {
				return nil, err
			}
			policy.Permissions = append(policy.Permissions, rule)
		}
		for i, x := range p.GetPrincipals() {
			rule, err := rr.principal(x, fmt.Sprintf("%sprincipals[%d].", at, i), 0)
			if err != nil {
				return nil, err
			}
			policy.Principals = append(policy.Principals, rule)
		}
		out.Policies = append(out.Policies, policy)
	}
	if m.GetAuditLoggingOptions() != nil {
		r.ignore("%saudit_logging_options", path)
	}
	if _, err := rbac.New(out, nil); err != nil {
		return nil, fmt.Errorf("%spolicies: %w", path, err)
	}
	if len(rr.unsupported) > 0 {
		if enforced {
			r.sort(rr.unsupported)
			return nil, nil
		}
		for _, what := range rr.unsupported {
			r.ignore("%s: the shadow rules are left out", what)
		}
		return nil, nil
	}
	return out, nil
}

// ruleReader reads conditions. Those that are not known here become rbac.Any, and
// are listed, so that the rules are not used.
type ruleReader struct {
	left        int // conditions that there may be yet
	unsupported []string
}

func (r *ruleReader) refuse(format string, args ...any) {
	r.unsupported = append(r.unsupported, fmt.Sprintf(format, args...))
}

// more counts a condition at a depth.
func (r *ruleReader) more(path string, depth int) error {
	switch r.left--; {
	case r.left < 0:
		return fmt.Errorf("%s: more than %d conditions", path, mostConditions)
	case depth >= rbac.MaxDepth:
		return fmt.Errorf("%s: nested deeper than %d", path, rbac.MaxDepth)
	}
	return nil
}

// permission reads a permission, the path of which ends in a dot.
func (r *ruleReader) permission(m *rbacconfigv3.Permission, path string, depth int) (rule rbac.Rule, err error) {
	if err := r.more(path, depth); err != nil {
		return rule, err
	}
	all := func(kind rbac.Kind, list []*rbacconfigv3.Permission, name string) (rbac.Rule, error) {
		rule := rbac.Rule{Kind: kind}
		for i, x := range list {
			sub, err := r.permission(x, fmt.Sprintf("%s%s.rules[%d].", path, name, i), depth+1)
			if err != nil {
				return rule, err
			}
			rule.Rules = append(rule.Rules, sub)
		}
		return rule, nil
	}
	switch x := m.GetRule().(type) {
	case *rbacconfigv3.Permission_AndRules:
		return all(rbac.And, x.AndRules.GetRules(), "and_rules")
	case *rbacconfigv3.Permission_OrRules:
		return all(rbac.Or, x.OrRules.GetRules(), "or_rules")
	case *rbacconfigv3.Permission_NotRule:
		sub, err := r.permission(x.NotRule, path+"not_rule.", depth+1)
		return rbac.Rule{Kind: rbac.Not, Rules: []rbac.Rule{sub}}, err
	case *rbacconfigv3.Permission_Any:
		return anyRule(x.Any, path)
	case *rbacconfigv3.Permission_DestinationIp:
		p, err := readPrefix(x.DestinationIp)
		if err != nil {
			return rule, fmt.Errorf("%sdestination_ip.%w", path, err)
		}
		return rbac.Rule{Kind: rbac.DestinationIP, Prefix: p}, nil
	case *rbacconfigv3.Permission_DestinationPort:
		if x.DestinationPort > 65535 {
			return rule, fmt.Errorf("%sdestination_port: %d: want at most 65535", path, x.DestinationPort)
		}
		return rbac.Rule{Kind: rbac.DestinationPort, Ports: [2]uint32{x.DestinationPort, x.DestinationPort + 1}}, nil
	case *rbacconfigv3.Permission_DestinationPortRange:
		from, to := x.DestinationPortRange.GetStart(), x.DestinationPortRange.GetEnd()
		if from < 0 || to > 1<<16 || from >= to {
			return rule, fmt.Errorf("%sdestination_port_range: from %d to below %d: want a range up to 65536", path, from, to)
		}
		return rbac.Rule{Kind: rbac.DestinationPort, Ports: [2]uint32{uint32(from), uint32(to)}}, nil
	case *rbacconfigv3.Permission_RequestedServerName:
		match, err := r.text(x.RequestedServerName, path+"requested_server_name.")
		return rbac.Rule{Kind: rbac.ServerName, Match: match}, err
	case nil:
		return rule, fmt.Errorf("%srule: missing", path)
	}
	r.refuse("%s%s", path, setIn(m, "rule"))
	return rbac.Rule{Kind: rbac.Any}, nil
}

// principal reads a principal, the path of which ends in a dot.
func (r *ruleReader) principal(m *rbacconfigv3.Principal, path string, depth int) (rule rbac.Rule, err error) {
	if err := r.more(path, depth); err != nil {
		return rule, err
	}
	all := func(kind rbac.Kind, list []*rbacconfigv3.Principal, name string) (rbac.Rule, error) {
		rule := rbac.Rule{Kind: kind}
		for i, x := range list {
			sub, err := r.principal(x, fmt.Sprintf("%s%s.ids[%d].", path, name, i), depth+1)
			if err != nil {
				return rule, err
			}
			rule.Rules = append(rule.Rules, sub)
		}
		return rule, nil
	}
	within := func(kind rbac.Kind, name string) (rbac.Rule, error) {
		c := m.GetRemoteIp()
		if kind == rbac.DirectRemoteIP {
			c = m.GetDirectRemoteIp()
		} else if m.GetSourceIp() != nil {
			c = m.GetSourceIp()
		}
		p, err := readPrefix(c)
		if err != nil {
			return rule, fmt.Errorf("%s%s.%w", path, name, err)
		}
		return rbac.Rule{Kind: kind, Prefix: p}, nil
	}
	switch x := m.GetIdentifier().(type) {
	case *rbacconfigv3.Principal_AndIds:
		return all(rbac.And, x.AndIds.GetIds(), "and_ids")
	case *rbacconfigv3.Principal_OrIds:
		return all(rbac.Or, x.OrIds.GetIds(), "or_ids")
	case *rbacconfigv3.Principal_NotId:
		sub, err := r.principal(x.NotId, path+"not_id.", depth+1)
		return rbac.Rule{Kind: rbac.Not, Rules: []rbac.Rule{sub}}, err
	case *rbacconfigv3.Principal_Any:
		return anyRule(x.Any, path)
	case *rbacconfigv3.Principal_Authenticated_:
		if x.Authenticated.GetPrincipalName() == nil {
			return rbac.Rule{Kind: rbac.Authenticated}, nil
		}
		match, err := r.text(x.Authenticated.GetPrincipalName(), path+"authenticated.principal_name.")
		return rbac.Rule{Kind: rbac.Authenticated, Match: match}, err
	case *rbacconfigv3.Principal_SourceIp: // for connections the same, in Envoy too
		return within(rbac.RemoteIP, "source_ip")
	case *rbacconfigv3.Principal_RemoteIp:
		return within(rbac.RemoteIP, "remote_ip")
	case *rbacconfigv3.Principal_DirectRemoteIp:
		return within(rbac.DirectRemoteIP, "direct_remote_ip")
	case nil:
		return rule, fmt.Errorf("%sidentifier: missing", path)
	}
	r.refuse("%s%s", path, setIn(m, "identifier"))
	return rbac.Rule{Kind: rbac.Any}, nil
}

// anyRule reads a condition that must be true.
func anyRule(is bool, path string) (rbac.Rule, error) {
	if !is {
		return rbac.Rule{}, fmt.Errorf("%sany: false: want true", path)
	}
	return rbac.Rule{Kind: rbac.Any}, nil
}

// text reads what a text is to be like.
func (r *ruleReader) text(m *matcherv3.StringMatcher, path string) (*rbac.String, error) {
	s := &rbac.String{IgnoreCase: m.GetIgnoreCase()}
	value := ""
	switch x := m.GetMatchPattern().(type) {
	case *matcherv3.StringMatcher_Exact:
		s.Exact = x.Exact
		return s, nil
	case *matcherv3.StringMatcher_Prefix:
		s.Prefix, value = x.Prefix, x.Prefix
	case *matcherv3.StringMatcher_Suffix:
		s.Suffix, value = x.Suffix, x.Suffix
	case *matcherv3.StringMatcher_Contains:
		s.Contains, value = x.Contains, x.Contains
	case *matcherv3.StringMatcher_SafeRegex:
		s.Regex, value = x.SafeRegex.GetRegex(), x.SafeRegex.GetRegex()
		s.IgnoreCase = false // as in Envoy
	case *matcherv3.StringMatcher_Custom:
		r.refuse("%scustom", path)
		return s, nil
	default:
		return nil, fmt.Errorf("%smatch_pattern: missing", path)
	}
	if value == "" {
		return nil, fmt.Errorf("%s%s: empty", path, setIn(m, "match_pattern"))
	}
	return s, nil
}
