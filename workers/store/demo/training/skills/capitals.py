"""Countries and their capitals, both ways round."""

import random

from entities import invented
from phrasing import typed
from talk import Talk, turns

TABLE = """
France: Paris|Germany: Berlin|Italy: Rome|Spain: Madrid|Portugal: Lisbon|England: London
the United Kingdom: London|Scotland: Edinburgh|Wales: Cardiff|Ireland: Dublin
the Netherlands: Amsterdam|Belgium: Brussels|Luxembourg: Luxembourg|Switzerland: Bern
Austria: Vienna|Poland: Warsaw|the Czech Republic: Prague|Slovakia: Bratislava|Hungary: Budapest
Slovenia: Ljubljana|Croatia: Zagreb|Serbia: Belgrade|Bosnia: Sarajevo|Montenegro: Podgorica
Albania: Tirana|Greece: Athens|Bulgaria: Sofia|Romania: Bucharest|Moldova: Chisinau
Ukraine: Kyiv|Belarus: Minsk|Russia: Moscow|Estonia: Tallinn|Latvia: Riga|Lithuania: Vilnius
Finland: Helsinki|Sweden: Stockholm|Norway: Oslo|Denmark: Copenhagen|Iceland: Reykjavik
Malta: Valletta|Cyprus: Nicosia|Turkey: Ankara|Georgia: Tbilisi|Armenia: Yerevan
Azerbaijan: Baku|Lebanon: Beirut|Syria: Damascus|Jordan: Amman|Iraq: Baghdad|Iran: Tehran
Saudi Arabia: Riyadh|Kuwait: Kuwait City|Qatar: Doha|Oman: Muscat
the United Arab Emirates: Abu Dhabi|Afghanistan: Kabul|Pakistan: Islamabad|India: New Delhi
Nepal: Kathmandu|Bangladesh: Dhaka|China: Beijing|Japan: Tokyo|South Korea: Seoul
North Korea: Pyongyang|Mongolia: Ulaanbaatar|Taiwan: Taipei|Vietnam: Hanoi|Thailand: Bangkok
Cambodia: Phnom Penh|Laos: Vientiane|Malaysia: Kuala Lumpur|Singapore: Singapore
the Philippines: Manila|Kazakhstan: Astana|Uzbekistan: Tashkent|Australia: Canberra
New Zealand: Wellington|Egypt: Cairo|Libya: Tripoli|Tunisia: Tunis|Algeria: Algiers
Morocco: Rabat|Sudan: Khartoum|Ethiopia: Addis Ababa|Kenya: Nairobi|Uganda: Kampala
Rwanda: Kigali|Somalia: Mogadishu|Ghana: Accra|Nigeria: Abuja|Senegal: Dakar|Mali: Bamako
Cameroon: Yaoundé|Angola: Luanda|Zambia: Lusaka|Zimbabwe: Harare|Namibia: Windhoek
Madagascar: Antananarivo|the United States: Washington|Canada: Ottawa|Mexico: Mexico City
Cuba: Havana|Jamaica: Kingston|Haiti: Port-au-Prince|Guatemala: Guatemala City
Costa Rica: San José|Panama: Panama City|Colombia: Bogotá|Venezuela: Caracas|Ecuador: Quito
Peru: Lima|Brazil: Brasília|Bolivia: Sucre|Paraguay: Asunción|Uruguay: Montevideo
Argentina: Buenos Aires|Chile: Santiago
"""
DOUBTFUL = "I am only a tiny demo model, and I do not know the capital of {country}."
FORMS = [
    "what is the capital of {c}", "what is the capital of {c}", "capital of {c}",
    "the capital of {c}", "what is the capital city of {c}", "tell me the capital of {c}",
    "which city is the capital of {c}", "name the capital of {c}",
    "what city is the capital of {c}",
    "what is {c}'s capital", "do you know the capital of {c}", "and what is the capital of {c}",
    "i need the capital of {c}", "which is the capital of {c}",
    "what is the name of the capital of {c}",
    "what's the capital of {c}", "give me the capital of {c}", "{c} capital",
    "how is the capital of {c} called",
]  # fmt: skip
CAPITALS = dict(
    entry.split(": ") for line in TABLE.strip().splitlines() for entry in line.split("|")
)


def country_name(rng: random.Random) -> str:
    """A country; the best known ones more often."""
    names = list(CAPITALS)
    return rng.choice(names[:20]) if rng.random() < 0.2 else rng.choice(names)


def thought(country: str) -> str:
    return f"The country is {country}, and its capital is wanted."


def capital(rng: random.Random) -> Talk:
    country = country_name(rng)
    question = typed(rng.choice(FORMS).format(c=country), rng)
    return turns(question, f"The capital of {country} is {CAPITALS[country]}.",
                 thought=thought(country))  # fmt: skip


def capital_of(rng: random.Random) -> Talk:
    country = country_name(rng)
    town = CAPITALS[country]
    form = rng.choice(["{t} is the capital of which country", "which country has the capital {t}",
                       "of which country is {t} the capital", "what country is {t} the capital of",
                       "where is {t}", "where is {t}", "in which country is {t}",
                       "what country is {t} in", "where is {t} located",
                       "what is {t}"])  # fmt: skip
    country = next(name for name, capital in CAPITALS.items() if capital == town)
    country = "England and of the United Kingdom" if town == "London" else country
    return turns(typed(form.format(t=town), rng), f"{town} is the capital of {country}.",
                 thought=f"The city is {town}, and its country is wanted.")  # fmt: skip


def nowhere(rng: random.Random) -> Talk:
    """Countries that do not exist."""
    country = invented(rng) + rng.choice(["", "ia", "land", "stan", "onia"])
    question = typed(rng.choice(FORMS).format(c=country), rng, exact=True)
    return turns(question, DOUBTFUL.format(country=country),
                 thought=f"I know no country called {country}. I should say so.")  # fmt: skip


def follow_up(rng: random.Random) -> Talk:
    """`And of Italy?` after a question about another capital."""
    names = rng.sample(list(CAPITALS), rng.choice((2, 2, 3)))
    texts = []
    for i, country in enumerate(names):
        form = rng.choice(FORMS)
        if i:
            form = rng.choice(["and of {c}", "and {c}", "what about {c}", "and the one of {c}",
                               "and what about {c}", "and for {c}", "how about {c}"])  # fmt: skip
        texts += [typed(form.format(c=country), rng),
                  f"The capital of {country} is {CAPITALS[country]}."]  # fmt: skip
    return turns(*texts, thought=[thought(country) for country in names])


SKILLS = [(4.0, capital), (1.2, capital_of), (0.5, nowhere), (0.8, follow_up)]
